"""Calls the carver, a process of its own: model bytes are untrusted, `onnx` never enters here.

A model that is to be sealed is never on a disk in plain form on its way: the carver reads it from
memory and answers with memory files, which are sealed one by one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from din.artifacts.files import ArtifactFolder
from din.domain.cuts import CutTable
from din.domain.gateway_view import ErrorView
from din.domain.malformed import MALFORMED
from din.domain.model import (
    MODEL_FILE,
    AnalyseRequest,
    Artifact,
    CarveAnswer,
    CarveRequest,
    ExternalFile,
)
from din.errors import DeadlineExceeded, DinError, Internal, TooLarge, error_of_code
from din.gateway.registration.carve_cache import CarveCache, key_of
from din.gateway.trust.vault import Vault
from din.system.descriptors import close_all, control_pair, receive_message
from din.system.privacy import plain_environment

CARVE_SECONDS_MAX: Final = 300
CARVERS_MAX: Final = 2
"""At once: each may hold a few copies of one model in memory."""
HASH_CHARACTERS: Final = 64
Said = TypeVar("Said", CarveAnswer, CutTable)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Carving:
    """Runs carvers and moves what they made into the artifact folder."""

    def __init__(
        self,
        artifacts: ArtifactFolder,
        scratch: Path,
        vault: Vault,
        cache: CarveCache | None = None,
        *,
        is_insecure: bool = False,
    ) -> None:
        """`is_insecure`: models are read also where nothing confines who does."""
        self._artifacts = artifacts
        self._scratch = scratch
        self._vault = vault
        self._cache = cache
        self._words = ("--insecure",) if is_insecure else ()
        self._places = asyncio.Semaphore(CARVERS_MAX)
        self._sealing = asyncio.Lock()
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)

    async def carve(
        self,
        request: CarveRequest,
        source_sha256: str,
        external: Mapping[str, str] = MappingProxyType({}),
        *,
        is_sealed: bool = False,
    ) -> CarveAnswer:
        """Carve one model with the files beside it, each by its hash; the paths of the request are
        replaced by our own.

        Raises NotFound without the source, Unavailable without room for what is to be written, the
        carver's DinError, DeadlineExceeded after CARVE_SECONDS_MAX, Internal when the carver died
        without an answer.
        """
        sources = {MODEL_FILE: source_sha256, **external}
        make = partial(self._carve, request, sources, is_sealed=is_sealed)
        if self._cache is None:
            return await make()
        uploaded = tuple(sources.values())
        key = key_of(request, sources, self._circumstances(uploaded, is_sealed))
        is_stored = not is_sealed
        return await self._cache.answer(key, make, uploaded=uploaded, is_stored=is_stored)

    def _circumstances(self, sources: Collection[str], is_sealed: bool) -> object:
        """How files are kept decides of what an answer consists: sealed slices open with one master
        key only, and of others what lies sealed cannot be fetched as it is."""
        if is_sealed:
            return self._vault.master_id
        return [self._artifacts.sealed_file(each) is None for each in sources]

    async def _carve(
        self, request: CarveRequest, sources: Mapping[str, str], *, is_sealed: bool
    ) -> CarveAnswer:
        async with self._places:
            sizes = [self._artifacts.size(each) or 0 for each in sources.values()]
            if is_sealed:  # every file is written anew
                self._artifacts.check_room(sum(sizes))
            folder = Path(tempfile.mkdtemp(dir=self._scratch))
            opened: list[int] = []
            shown = {str(folder): "the gateway's disk"}
            try:
                beside: dict[str, ExternalFile] = {}
                as_is: list[str] = []
                for location, sha256 in sources.items():
                    before = len(opened)
                    path = await self._source(sha256, opened)
                    shown[path] = f"the file {location!r}" if location else "the model file"
                    beside[location] = ExternalFile(path=path, sha256=sha256)
                    if len(opened) == before and not is_sealed:
                        as_is.append(location)
                asked = replace(
                    request,
                    model_path=beside.pop(MODEL_FILE).path,
                    source_sha256=sources[MODEL_FILE],
                    external=beside,
                    as_is=tuple(as_is),
                    output_path=str(folder),
                    # What serves as it is takes no room: the carver knows what it has to write.
                    room_bytes=None if is_sealed else self._artifacts.room_bytes(sum(sizes)),
                )
                if is_sealed:
                    return await self._carve_sealed(asked, opened, folder)
                return self._adopted(await self._call(asked, opened, CarveAnswer), folder)
            except DinError as error:
                raise type(error)(_without(error.message, shown), hint=error.hint) from None
            finally:
                close_all(opened)
                shutil.rmtree(folder, ignore_errors=True)

    async def analyse(
        self,
        request: AnalyseRequest,
        source_sha256: str,
        external: Mapping[str, str] = MappingProxyType({}),
    ) -> CutTable:
        """What cuts of a model can be chosen from. Raises as `carve`."""
        async with self._places:
            opened: list[int] = []
            shown: dict[str, str] = {}
            try:
                beside: dict[str, ExternalFile] = {}
                for location, sha256 in {MODEL_FILE: source_sha256, **external}.items():
                    path = await self._source(sha256, opened)
                    shown[path] = f"the file {location!r}" if location else "the model file"
                    beside[location] = ExternalFile(path=path, sha256=sha256)
                model_path = beside.pop(MODEL_FILE).path
                asked = replace(
                    request, model_path=model_path, source_sha256=source_sha256, external=beside
                )
                return await self._call(asked, opened, CutTable)
            except DinError as error:
                raise type(error)(_without(error.message, shown), hint=error.hint) from None
            finally:
                close_all(opened)

    async def read(self, sha256: str, nbytes_max: int) -> bytes:
        """What was uploaded under this hash, sealed or not. Raises NotFound, TooLarge, and as
        `Vault.open`."""
        opened: list[int] = []
        try:
            path = Path(await self._source(sha256, opened))
            return await asyncio.to_thread(_content, path, nbytes_max)
        finally:
            close_all(opened)

    async def seal_source(self, sha256: str) -> None:
        """Keep an uploaded model in sealed form as well; others may be reading the plain one.
        Raises NotFound, TooLarge, Unavailable."""
        async with self._sealing:  # two registrations of one source seal it once
            if self._artifacts.sealed_file(sha256) is not None:
                return
            file = self._artifacts.file(sha256)
            self._artifacts.check_room(file.stat().st_size)
            part = self._artifacts.sealed_path(sha256).with_suffix(f".part-{os.getpid()}")
            with file.open("rb") as source:
                await asyncio.to_thread(self._vault.seal, source.fileno(), sha256, part)
            part.rename(self._artifacts.sealed_path(sha256))

    async def _source(self, sha256: str, opened: list[int]) -> str:
        """The path by which the carver reads a file; the descriptor that it may need is added."""
        sealed = self._artifacts.sealed_file(sha256)
        if sealed is None:
            return str(self._artifacts.file(sha256))
        opened.append(await asyncio.to_thread(self._vault.open, sealed))
        return f"/proc/self/fd/{opened[-1]}"

    def _adopted(self, answer: CarveAnswer, folder: Path) -> CarveAnswer:
        for part in answer.slices:
            for artifact in part.artifacts:
                made = folder / artifact.sha256
                if made.exists():
                    self._artifacts.adopt(made, artifact.sha256)
        return answer

    async def _carve_sealed(
        self, request: CarveRequest, opened: Sequence[int], folder: Path
    ) -> CarveAnswer:
        ours, theirs = control_pair()
        with ours, theirs, _collected(ours) as files:
            asked = replace(request, output_path="", output_fd=theirs.fileno())
            answer = await self._call(asked, (*opened, theirs.fileno()), CarveAnswer)
            while _take(ours, files):
                pass
            sealed: dict[str, Artifact] = {}
            for sha256, descriptor in files.items():
                made = folder / sha256
                sealed[sha256] = await asyncio.to_thread(self._vault.seal, descriptor, sha256, made)
                self._artifacts.adopt(made, sealed[sha256].sha256)
        return replace(
            answer,
            slices=tuple(
                replace(part, artifacts=tuple(_sealed(sealed, each) for each in part.artifacts))
                for part in answer.slices
            ),
        )

    async def _call(
        self,
        request: CarveRequest | AnalyseRequest,
        descriptors: Sequence[int],
        kind: type[Said],
    ) -> Said:
        child = await asyncio.create_subprocess_exec(
            # -P: whatever lies in the folder where somebody stands is not imported.
            *(sys.executable, "-P", "-m", "din.carver", *self._words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=plain_environment(os.environ),
            pass_fds=tuple(descriptors),
        )
        try:
            async with asyncio.timeout(CARVE_SECONDS_MAX):
                said, complaint = await child.communicate(msgspec.json.encode(request))
        except TimeoutError:
            raise DeadlineExceeded(
                f"carving took over {CARVE_SECONDS_MAX} s and was stopped",
                hint="cut the model into fewer slices, or simplify its graph first",
            ) from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return _read(child.returncode, said, complaint, kind)


def _content(path: Path, nbytes_max: int) -> bytes:
    nbytes = path.stat().st_size
    if nbytes > nbytes_max:
        raise TooLarge(
            f"the file has {nbytes} bytes, and one of its kind at most {nbytes_max}",
            hint="give less at once",
        )
    return path.read_bytes()


def _without(message: str, shown: Mapping[str, str]) -> str:
    """The message with the paths of our store, which mean nothing to who sent the files, in words.
    Longest first: one may begin with another."""
    for path in sorted(shown, key=len, reverse=True):
        message = message.replace(path, shown[path])
    return message


def _sealed(sealed: dict[str, Artifact], plain: Artifact) -> Artifact:
    found = sealed.get(plain.sha256)
    if found is None:
        raise Internal(f"the carver kept slice {plain.sha256[:12]}… to itself")
    return replace(found, role=plain.role)


@contextmanager
def _collected(ours: socket.socket) -> Generator[dict[str, int]]:
    """Memory files that the carver sends, by hash; closed at the end."""
    files: dict[str, int] = {}
    loop = asyncio.get_running_loop()
    ours.setblocking(False)
    loop.add_reader(ours.fileno(), _take, ours, files)
    try:
        yield files
    finally:
        loop.remove_reader(ours.fileno())
        close_all(files.values())


def _take(ours: socket.socket, files: dict[str, int]) -> bool:
    """One file from the carver; False when there is none now."""
    try:
        name, descriptors = receive_message(ours, HASH_CHARACTERS)
    except (BlockingIOError, InterruptedError):
        return False
    text = name.decode(errors="replace")
    # It has parsed what a stranger made: the name becomes one of a file only when it is a hash.
    if len(descriptors) != 1 or text in files or _SHA256.fullmatch(text) is None:
        close_all(descriptors)
        return bool(name)
    files[text] = descriptors[0]
    return True


def _read(exit_code: int | None, said: bytes, complaint: bytes, kind: type[Said]) -> Said:
    try:
        if exit_code == 0:
            return msgspec.json.decode(said, type=kind)
        error = msgspec.json.decode(said, type=ErrorView)
    except MALFORMED:
        tail = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise Internal(
            f"the carver ended with code {exit_code} and said {said[:80]!r}; {''.join(tail)}",
            hint="nothing of the model reaches that process; if nobody killed it, the machine may "
            "be out of memory",
        ) from None
    raise error_of_code(error.code, error.message, error.hint)
