"""Answers of the carver, kept for the next registration that asks the same: the slicing cache.

An answer lies in memory and, with its checksum, in a folder of its own; of a sealed model, in
memory only, because it tells of operators and tensors. The files of its slices
stay in the artifact folder as long as the answer is kept; answer and files together count against
the limit. What was uploaded is no part of it: an answer that refers to it counts while it is there.
A changed model has another hash, so that nothing old can be found for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from din.artifacts.files import ArtifactFolder
from din.config import GatewayConfig
from din.domain.gateway_view import SlicingCacheView
from din.domain.model import SLICE_ENCODING, CarveAnswer, CarveRequest
from din.errors import NotFound
from din.flow.recency import Recency
from din.system.packages import installed_versions
from din.version import __version__

MEGABYTE: Final = 1_000_000
FORMAT: Final = "din.slicing-cache/1"
CHECKSUM_BYTES: Final = 32
PART_SUFFIX: Final = ".part"
_WAYS: Final = (
    "model_path", "source_sha256", "external", "as_is", "output_path", "output_fd", "room_bytes",
)  # fmt: skip
"""Fields of a request that say where things lie, not what is wanted."""
_KEY: Final = re.compile(r"[0-9a-f]{64}")


def key_of(request: CarveRequest, sources: Mapping[str, str], circumstances: object) -> str:
    """SHA256 of all that decides an answer: what is asked, the hashes of the model's files by their
    location, the versions of DIN, of its encoding and of ONNX; `circumstances`: how files are
    kept."""
    asked = msgspec.to_builtins(request)
    for name in _WAYS:
        asked.pop(name, None)
    everything = [
        FORMAT,
        __version__,
        SLICE_ENCODING,
        _onnx_version(),
        asked,
        dict(sources),
        circumstances,
    ]
    return hashlib.sha256(msgspec.json.encode(everything, order="sorted")).hexdigest()


@cache
def _onnx_version() -> str:
    """Of the carver's library, which fills in shapes; looking it up reads files."""
    return installed_versions(("onnx",)).get("onnx", "")


class _Kept(Struct, frozen=True, kw_only=True):
    """One answer as the disk keeps it."""

    format: str
    files: dict[str, int]
    """Bytes of what was made for it, by SHA256."""
    sources: tuple[str, ...] = ()
    """What was uploaded and its slices are fetched from as it is."""
    answer: CarveAnswer


class _Entry(Struct):
    """One answer as memory keeps it."""

    answer: CarveAnswer
    files: dict[str, int]
    sources: tuple[str, ...]
    is_checked: bool
    """False = read from a disk, its files were not held against their hashes since."""


class CarveCache:
    """Keeps answers; the same question that is asked twice at once is carved once."""

    def __init__(
        self,
        folder: Path,
        artifacts: ArtifactFolder,
        bytes_max: int,
        report: Callable[..., None],
    ) -> None:
        self._folder = folder
        self._artifacts = artifacts
        self._report = report
        self._entries: Recency[_Entry] = Recency(bytes_max)
        self._flights: dict[str, asyncio.Task[CarveAnswer]] = {}
        self._hits = self._misses = self._evictions = 0
        self.drop: Callable[[set[str]], None] = lambda sha256s: None
        """Takes files that no answer needs any more."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.iterdir(), key=_age):
            self._take_in(path)

    def view(self) -> SlicingCacheView:
        """How it does."""
        looked_up = self._hits + self._misses
        return SlicingCacheView(
            hits=self._hits,
            misses=self._misses,
            hit_ratio=self._hits / looked_up if looked_up else None,
            evictions=self._evictions,
            entries=len(self._entries),
            nbytes=self._entries.nbytes,
            nbytes_max=self._entries.bytes_max,
        )

    def held(self) -> set[str]:
        """Files that have to stay for answers that are kept."""
        return {sha256 for each in self._entries.values() for sha256 in each.files}

    async def answer(
        self,
        key: str,
        make: Callable[[], Awaitable[CarveAnswer]],
        *,
        uploaded: Collection[str] = (),
        is_stored: bool = True,
    ) -> CarveAnswer:
        """The answer under this key, made when it is not there. `uploaded`: files that it may refer
        to and that others keep; not `is_stored` = it goes to no disk. Raises what `make` raises."""
        flight = self._flights.get(key)
        if flight is None:
            found = await self._found(key)
            if found is not None:
                self._hits += 1
                return found
            flight = self._flights.get(key)  # looking took a moment
        if flight is None:
            self._misses += 1
            flight = asyncio.get_running_loop().create_task(
                self._made(key, make, uploaded, is_stored=is_stored)
            )
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._landed(key, done))
        else:
            self._hits += 1
        # Who asked may go; others wait for the same.
        return await asyncio.shield(flight)

    async def _made(
        self,
        key: str,
        make: Callable[[], Awaitable[CarveAnswer]],
        uploaded: Collection[str],
        *,
        is_stored: bool,
    ) -> CarveAnswer:
        answer = await make()
        self._keep(key, answer, uploaded, is_stored=is_stored)
        return answer

    def _landed(self, key: str, flight: asyncio.Task[CarveAnswer]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # whoever waits raises it; nobody may wait any more

    async def _found(self, key: str) -> CarveAnswer | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        reason = self._missing(entry)
        if not reason and not entry.is_checked:
            reason = await asyncio.to_thread(self._damaged, entry)
        if reason:
            self._entries.pop(key)
            self._let_go({key: entry})
            self._report("slicing cache entry dropped", entry=key[:12], reason=reason)
            return None
        entry.is_checked = True
        _touch(self._folder / key)
        return entry.answer

    def _missing(self, entry: _Entry) -> str:
        for sha256, nbytes in entry.files.items():
            if self._artifacts.size(sha256) != nbytes:
                return f"its file {sha256[:12]}… is not there or not whole"
        for sha256 in entry.sources:
            if self._artifacts.size(sha256) is None:
                return f"the upload {sha256[:12]}… that it refers to is not there"
        return ""

    def _damaged(self, entry: _Entry) -> str:
        for sha256 in entry.files:
            try:
                if self._artifacts.verify(sha256):
                    continue
            except (NotFound, OSError):
                pass  # it went, or the disk cannot be read: no good either way
            return f"its file {sha256[:12]}… was damaged on the disk"
        return ""

    def _keep(
        self,
        key: str,
        answer: CarveAnswer,
        uploaded: Collection[str],
        *,
        is_stored: bool,
    ) -> None:
        needed = {each.sha256: each.nbytes for part in answer.slices for each in part.artifacts}
        files = {sha256: nbytes for sha256, nbytes in needed.items() if sha256 not in uploaded}
        entry = _Entry(answer, files, tuple(sorted(needed.keys() - files.keys())), True)
        content = _content_of(entry)
        try:
            if is_stored:
                _write(self._folder / key, content)
        except OSError as error:  # a full disk: registering does not depend on it
            self._report("slicing cache entry not kept", entry=key[:12], reason=str(error))
            self._let_go({key: entry})
            return
        self._put(key, entry, len(content))

    def _put(self, key: str, entry: _Entry, nbytes: int) -> None:
        cost = nbytes + sum(entry.files.values())
        gone = self._entries.put(key, entry, cost)
        if key in gone:
            limit = f"{cost} bytes with its files, over the limit of {self._entries.bytes_max}"
            self._report("slicing cache entry not kept", entry=key[:12], reason=limit)
        self._evictions += len(gone.keys() - {key})
        self._let_go(gone)

    def _let_go(self, entries: Mapping[str, _Entry]) -> None:
        """These are no more: their records go, and the files that nobody else needs."""
        for key in entries:
            (self._folder / key).unlink(missing_ok=True)
        files = {sha256 for each in entries.values() for sha256 in each.files}
        if files:
            self.drop(files)

    def _take_in(self, path: Path) -> None:
        """One file of the folder at the start: kept when it is whole and its files are there."""
        try:
            entry, nbytes = _read(path, self._entries.bytes_max)
            reason = self._missing(entry)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            entry, nbytes, reason = None, 0, f"it cannot be used: {error}"
        if entry is not None and not reason:
            self._put(path.name, entry, nbytes)
            return
        path.unlink(missing_ok=True)
        self._report("slicing cache entry dropped", entry=path.name[:12], reason=reason)


def opened_cache(
    folder: Path, artifacts: ArtifactFolder, config: GatewayConfig, report: Callable[..., None]
) -> CarveCache | None:
    """The cache as the settings want it; off, nothing stays of what an earlier start kept."""
    if not config.slicing_cache_enabled:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return CarveCache(folder, artifacts, config.slicing_cache_size_mb * MEGABYTE, report)


def _checksum(name: str, content: bytes) -> bytes:
    """Over the name too: a record that was renamed answers another question."""
    return hashlib.sha256(name.encode() + content).digest()


def _content_of(entry: _Entry) -> bytes:
    kept = _Kept(
        format=FORMAT,
        files=entry.files,
        sources=entry.sources,
        answer=entry.answer,
    )
    return msgspec.json.encode(kept)


def _write(path: Path, content: bytes) -> None:
    part = path.with_suffix(PART_SUFFIX)
    try:
        part.write_bytes(_checksum(path.name, content) + content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _read(path: Path, bytes_max: int) -> tuple[_Entry, int]:
    """Raises OSError, ValueError or MsgspecError for what is no whole record of this format."""
    if _KEY.fullmatch(path.name) is None:
        raise ValueError("it is no record of the cache")
    with path.open("rb") as source:
        data = source.read(CHECKSUM_BYTES + bytes_max + 1)
    content = data[CHECKSUM_BYTES:]
    if len(content) > bytes_max:
        raise ValueError(f"it has more than {bytes_max} bytes")
    if data[:CHECKSUM_BYTES] != _checksum(path.name, content):
        raise ValueError("its checksum is another one")
    kept = msgspec.json.decode(content, type=_Kept)
    if kept.format != FORMAT:
        raise ValueError(f"it is of format {kept.format!r}")
    return _Entry(kept.answer, kept.files, kept.sources, not kept.files), len(content)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _touch(path: Path) -> None:
    """The order of use outlasts a restart; a record that is gone has none."""
    with suppress(OSError):
        os.utime(path)
