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
from collections.abc import Collection, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from din.artifacts.files import ArtifactFolder
from din.domain.model import Artifact, CarveAnswer, CarveRequest
from din.domain.views import ErrorView
from din.errors import DeadlineExceeded, DinError, Internal, error_of_code
from din.gateway.carve_cache import CarveCache, key_of
from din.gateway.vault import Vault
from din.system.descriptors import close_all, control_pair, receive_message

CARVE_SECONDS_MAX: Final = 300
CARVERS_MAX: Final = 2
"""At once: each may hold a few copies of one model in memory."""
HASH_CHARACTERS: Final = 64
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Carving:
    """Runs carvers and moves what they made into the artifact folder."""

    def __init__(
        self,
        artifacts: ArtifactFolder,
        scratch: Path,
        vault: Vault,
        cache: CarveCache | None = None,
    ) -> None:
        self._artifacts = artifacts
        self._scratch = scratch
        self._vault = vault
        self._cache = cache
        self._places = asyncio.Semaphore(CARVERS_MAX)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)

    async def carve(
        self, request: CarveRequest, source_sha256: str, *, is_sealed: bool = False
    ) -> CarveAnswer:
        """Carve one model; the paths of the request are replaced by our own.

        Raises NotFound without the source, the carver's DinError, DeadlineExceeded after
        CARVE_SECONDS_MAX, Internal when the carver died without an answer.
        """
        make = partial(self._carve, request, source_sha256, is_sealed=is_sealed)
        if self._cache is None:
            return await make()
        return await self._cache.carve(
            key_of(request, {"": source_sha256}, self._circumstances((source_sha256,), is_sealed)),
            (source_sha256,),
            make,
        )

    def _circumstances(self, sources: Collection[str], is_sealed: bool) -> object:
        """How files are kept decides of what an answer consists: sealed slices open with one master
        key only, and of others what lies sealed cannot be fetched as it is."""
        if is_sealed:
            return self._vault.master_id
        return [self._artifacts.sealed_file(each) is None for each in sources]

    async def _carve(
        self, request: CarveRequest, source_sha256: str, *, is_sealed: bool
    ) -> CarveAnswer:
        async with self._places:
            folder = Path(tempfile.mkdtemp(dir=self._scratch))
            path, source_fd = await self._source(source_sha256)
            asked = replace(request, model_path=path, output_path=str(folder))
            try:
                self._artifacts.check_room(self._artifacts.size(source_sha256) or 0)
                if is_sealed:
                    return await self._carve_sealed(asked, source_fd, folder)
                return self._adopted(await _call(asked, source_fd), folder)
            except DinError as error:
                # The store's path means nothing to who sent the file.
                shown = error.message.replace(path, "the model file")
                raise type(error)(shown, hint=error.hint) from None
            finally:
                close_all(source_fd)
                shutil.rmtree(folder, ignore_errors=True)

    async def seal_source(self, sha256: str) -> None:
        """Keep an uploaded model in sealed form only. Raises TooLarge, Unavailable."""
        if self._artifacts.sealed_file(sha256) is None:
            file = self._artifacts.file(sha256)
            self._artifacts.check_room(file.stat().st_size)
            part = self._artifacts.sealed_path(sha256).with_suffix(f".part-{os.getpid()}")
            with file.open("rb") as source:
                await asyncio.to_thread(self._vault.seal, source.fileno(), sha256, part)
            part.rename(self._artifacts.sealed_path(sha256))
        self._artifacts.remove_plain(sha256)

    async def _source(self, sha256: str) -> tuple[str, tuple[int, ...]]:
        """The path by which the carver reads a model, and the descriptor that it needs for it."""
        sealed = self._artifacts.sealed_file(sha256)
        if sealed is None:
            return str(self._artifacts.file(sha256)), ()
        descriptor = await asyncio.to_thread(self._vault.open, sealed)
        return f"/proc/self/fd/{descriptor}", (descriptor,)

    def _adopted(self, answer: CarveAnswer, folder: Path) -> CarveAnswer:
        for part in answer.slices:
            for artifact in part.artifacts:
                made = folder / artifact.sha256
                if made.exists():
                    self._artifacts.adopt(made, artifact.sha256)
        return answer

    async def _carve_sealed(
        self, request: CarveRequest, source_fd: tuple[int, ...], folder: Path
    ) -> CarveAnswer:
        ours, theirs = control_pair()
        with ours, theirs, _collected(ours) as files:
            asked = replace(request, output_path="", output_fd=theirs.fileno())
            answer = await _call(asked, (*source_fd, theirs.fileno()))
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


async def _call(request: CarveRequest, descriptors: tuple[int, ...]) -> CarveAnswer:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "din.carver",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        pass_fds=descriptors,
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
    return _read(child.returncode, said, complaint)


def _read(exit_code: int | None, said: bytes, complaint: bytes) -> CarveAnswer:
    try:
        if exit_code == 0:
            return msgspec.json.decode(said, type=CarveAnswer)
        error = msgspec.json.decode(said, type=ErrorView)
    except msgspec.DecodeError:
        tail = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise Internal(
            f"the carver ended with code {exit_code} and said {said[:80]!r}; {''.join(tail)}",
            hint="code -9 is the memory limit: register a smaller model or raise it",
        ) from None
    raise error_of_code(error.code, error.message, error.hint)
