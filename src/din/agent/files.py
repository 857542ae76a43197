"""Files of slices on this node, by SHA256: fetched once, checked, kept while the quota allows.

    <sha256>        whole and checked when it was renamed; checked again at its first use after a
                    start, because a disk may lose what it confirmed
    <sha256>.part   what a broken download has so far; the next one goes on from there

Files in use are never removed. A plain file goes when it is not in use and a sealed one with the
same content is: else a model that is sealed later would stay readable here. What is here already
needs no room and no network.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from din.domain.model import ARTIFACTS_MAX, Artifact
from din.errors import DinError, Unavailable, UsageError
from din.transport.http_client import fetch as fetch_file

FREE_BYTES_KEPT: Final = 64 * 1024 * 1024
"""Room left on the disk: identity, logs and other programs need some."""
TRIES_MAX: Final = 4
"""Downloads of one file without a single new byte before it is given up."""
RETRY_PAUSE_S: Final = 0.2
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Fetch(Protocol):
    """As `transport.http_client.fetch`."""

    def __call__(
        self,
        url: str,
        start: int,
        sink: Callable[[bytes], object],
        *,
        bytes_max: int,
        on_start: Callable[[int], object] | None = None,
    ) -> Awaitable[object]:
        """Stream a file from a byte on. Raises DinError; what `sink` raises passes."""
        ...


Report = Callable[..., None]
FreeBytes = Callable[[Path], int]


def disk_free_bytes(folder: Path) -> int:
    """What an ordinary process may still write. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class SliceFiles:
    """A folder of slice files with a quota. All calls in the loop's thread."""

    def __init__(
        self,
        folder: Path,
        report: Report,
        *,
        fetch: Fetch = fetch_file,
        quota_bytes: int,
        free_bytes: FreeBytes = disk_free_bytes,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._fetch = fetch
        self._report = report
        self._quota_bytes = quota_bytes
        self._free_bytes = free_bytes
        self._in_use: dict[str, int] = {}
        self._sealed_in_use: Counter[str] = Counter()
        """How many sealed files with this content are in use, by the hash of the content."""
        self._checked: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    def allow(self, quota_bytes: int) -> None:
        """Another quota from now on; what is over it goes when room is wanted next."""
        self._quota_bytes = quota_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept: this node has held no slice yet."""
        with os.scandir(self._folder) as entries:
            return next(entries, None) is None

    async def use(self, artifacts: Sequence[Artifact], base_url: str) -> tuple[Path, ...]:
        """Paths of whole, checked files, fetched when absent; `release` them later.

        Raises UsageError for a bad hash, Unavailable over the quota, without room on the disk or
        when the download fails: another node may have what this one has not.
        """
        if len(artifacts) > ARTIFACTS_MAX:
            raise UsageError(f"a slice of {len(artifacts)} files; it may have {ARTIFACTS_MAX}")
        for artifact in artifacts:
            if _SHA256.fullmatch(artifact.sha256) is None or artifact.nbytes < 0:
                raise UsageError(f"artifact {artifact.sha256[:80]!r} is not named by a SHA256")
            if artifact.is_sealed and _SHA256.fullmatch(artifact.plain_sha256) is None:
                raise UsageError(f"content {artifact.plain_sha256[:80]!r} is not named by a SHA256")
        for artifact in artifacts:
            self._in_use[artifact.sha256] = self._in_use.get(artifact.sha256, 0) + 1
            self._sealed_in_use[artifact.plain_sha256] += artifact.is_sealed
            self._drop_plain(artifact.plain_sha256)
        try:
            return tuple([await self._ready(each, base_url) for each in artifacts])
        except BaseException:
            self.release(artifacts)
            raise

    def release(self, artifacts: Sequence[Artifact]) -> None:
        """These files are not in use any more; they stay until room is needed."""
        for artifact in artifacts:
            left = self._in_use.get(artifact.sha256, 0) - 1
            if left > 0:
                self._in_use[artifact.sha256] = left
            else:
                self._in_use.pop(artifact.sha256, None)
                self._locks.pop(artifact.sha256, None)
            self._drop_plain(artifact.sha256)
            self._sealed_in_use[artifact.plain_sha256] -= artifact.is_sealed
            self._sealed_in_use = +self._sealed_in_use

    def _drop_plain(self, sha256: str) -> None:
        """Remove a plain file that nobody uses, when what is in it is used from a sealed one."""
        path = self._folder / sha256
        if self._sealed_in_use[sha256] and sha256 not in self._in_use and _size(path) is not None:
            _remove(path)
            self._checked.discard(sha256)
            self._report("plain_file_removed", file=sha256)

    async def _ready(self, artifact: Artifact, base_url: str) -> Path:
        path = self._folder / artifact.sha256
        lock = self._locks.setdefault(artifact.sha256, asyncio.Lock())
        async with lock:
            if not await self._is_here(artifact, path):
                await self._pull(artifact, path, base_url)
        with contextlib.suppress(OSError):
            os.utime(path)  # the order in which files are given up
        return path

    async def _is_here(self, artifact: Artifact, path: Path) -> bool:
        found = _size(path)
        if found is None:
            self._checked.discard(artifact.sha256)
            return False
        if artifact.sha256 in self._checked and found == artifact.nbytes:
            return True
        if await asyncio.to_thread(_sha256_of, path) == artifact.sha256:
            self._checked.add(artifact.sha256)
            return True
        self._report("file_damaged_so_not_loaded", file=artifact.sha256)
        _remove(path)
        return False

    async def _pull(self, artifact: Artifact, path: Path, base_url: str) -> None:
        part = path.with_suffix(".part")
        try:
            if (_size(part) or 0) > artifact.nbytes:
                _remove(part)
            self._make_room(artifact.nbytes - (_size(part) or 0))
            await self._download(artifact, part, base_url + artifact.sha256)
            await asyncio.to_thread(_finish, part, path, self._folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                _remove(part)
                raise self._no_room(artifact.nbytes, "ran full") from error
            raise Unavailable(
                f"cannot write {part}: {error.strerror or error}",
                hint="check the permissions of the node's state directory",
            ) from error
        self._checked.add(artifact.sha256)

    async def _download(self, artifact: Artifact, part: Path, url: str) -> None:
        """Until the part is whole and its hash is right. Raises Unavailable."""
        failures = 0
        while True:
            had = _size(part)
            fault = None if had == artifact.nbytes else await self._try(artifact, part, url)
            if fault is None:
                if await asyncio.to_thread(_sha256_of, part) == artifact.sha256:
                    return
                _remove(part)
                fault = Unavailable(f"the bytes of artifact {artifact.sha256[:12]} are damaged")
                had = artifact.nbytes
            failures = 0 if (_size(part) or 0) > (had or 0) else failures + 1
            if failures >= TRIES_MAX:
                raise Unavailable(
                    f"artifact {artifact.sha256[:12]} could not be fetched: {fault.message}",
                    hint="is the gateway reachable, and does it still have the model",
                ) from fault
            self._report("download_failed", url=url, reason=fault.message, bytes=_size(part))
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _try(self, artifact: Artifact, part: Path, url: str) -> DinError | None:
        """One download, from where the last one ended; None = all bytes are there."""
        received = _size(part) or 0
        with part.open("ab") as file:

            def begin(start: int) -> None:
                nonlocal received
                if start < received:  # the server knows no ranges: all over again
                    file.truncate(start)
                    received = start

            def take(chunk: bytes) -> None:
                nonlocal received
                received += len(chunk)
                if received > artifact.nbytes:
                    raise Unavailable(f"more than {artifact.nbytes} bytes came")
                file.write(chunk)

            try:
                await self._fetch(url, received, take, bytes_max=artifact.nbytes, on_start=begin)
            except DinError as error:
                return error
        if received != artifact.nbytes:
            return Unavailable(f"the download ended at {received} of {artifact.nbytes} bytes")
        return None

    # Room.

    def _make_room(self, nbytes: int) -> None:
        """Give up unused files, the least recently used first, until `nbytes` more fit."""
        unused = self._unused()
        used = sum(entry.stat().st_size for entry in os.scandir(self._folder) if entry.is_file())
        while used + nbytes > self._quota_bytes or nbytes + FREE_BYTES_KEPT > self._free_bytes(
            self._folder
        ):
            if not unused:
                if used + nbytes > self._quota_bytes:
                    raise Unavailable(
                        f"{nbytes} more bytes of slices would make {used + nbytes}, over this "
                        f"node's quota of {self._quota_bytes}",
                        hint="remove models, or use a node with a larger disk",
                    )
                raise self._no_room(nbytes, "is too full")
            path = unused.pop(0)
            used -= _size(path) or 0
            _remove(path)
            self._checked.discard(path.name)
            self._report("file_removed", file=path.name)

    def _unused(self) -> list[Path]:
        found = [
            Path(entry.path)
            for entry in os.scandir(self._folder)
            if entry.is_file() and entry.name.removesuffix(".part") not in self._in_use
        ]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)

    def _no_room(self, nbytes: int, what: str) -> Unavailable:
        free = self._free_bytes(self._folder)
        return Unavailable(
            f"the disk of {self._folder} {what}: {nbytes} bytes are needed, {free} are free and "
            f"{FREE_BYTES_KEPT} of them are kept",
            hint="free some space on the node",
        )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _finish(part: Path, path: Path, folder: Path) -> None:
    """Sync the bytes before the name, then the name."""
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.rename(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
