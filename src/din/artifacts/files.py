"""A folder of immutable files, each named by the SHA256 of its bytes.

A file is written under a temporary name, hashed, synced, then renamed: what stands under a hash is
whole. Reading code may rely on that; code that loads a file after a crash may ask `verify`.
What shall be sealed is sealed as it comes: its plain bytes are on no disk. Knows nothing of models,
nodes, HTTP or keys.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from din.artifacts.partials import Partials, digest_of_part
from din.errors import Conflict, NotFound, TooLarge, Unavailable, UsageError

CHUNK_BYTES: Final = 1024 * 1024
FREE_BYTES_KEPT: Final = 64 * 1024 * 1024
"""Room that an upload leaves on the disk: a full disk stops the store and the logs as well."""

SEALED_SUFFIX: Final = ".sealed"

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Sealer(Protocol):
    """Encrypts content of known hash and size, chunk by chunk in order."""

    @property
    def head(self) -> bytes:
        """What the sealed file begins with."""
        ...

    @property
    def nbytes(self) -> int:
        """Of the whole sealed file."""
        ...

    @property
    def chunk_bytes(self) -> int:
        """Of the content in each chunk but the last."""
        ...

    def seal(self, chunk: bytes | bytearray | memoryview, /) -> bytes:
        """What follows in the sealed file."""
        ...


class ArtifactFolder:
    """Bytes by hash, under one folder, with a quota in bytes."""

    def __init__(self, path: Path, quota_bytes: int) -> None:
        self.path = path
        self._quota_bytes = quota_bytes
        path.mkdir(parents=True, exist_ok=True)
        for left_over in path.glob("*.part-*"):
            left_over.unlink(missing_ok=True)
        self.partials = Partials(path)

    def allow(self, quota_bytes: int) -> None:
        """Another quota from now on; what is stored stays."""
        self._quota_bytes = quota_bytes

    def size(self, sha256: str) -> int | None:
        """Bytes of an artifact, or None when it is not here. Raises UsageError for a bad hash."""
        try:
            return self._file(sha256).stat().st_size
        except FileNotFoundError:
            sealed = self.sealed_file(sha256)
            return sealed.stat().st_size if sealed is not None else None

    def sealed_file(self, sha256: str) -> Path | None:
        """Where the sealed form of what has this hash lies, if that is what is kept of it. Only
        sources are kept so: sealed slices are artifacts by their own hash."""
        path = self.sealed_path(sha256)
        return path if path.exists() else None

    def sealed_path(self, sha256: str) -> Path:
        """Where the sealed form belongs. Raises UsageError for a bad hash."""
        return self._file(sha256).with_suffix(SEALED_SUFFIX)

    def file(self, sha256: str) -> Path:
        """Path of an artifact. Raises NotFound, also for what is kept in sealed form only."""
        path = self._file(sha256)
        if not path.exists():
            raise NotFound(
                f"artifact {sha256[:12]}… is not in {self.path}",
                hint="register the model again: its bytes are uploaded when they are missing",
            )
        return path

    def used_bytes(self) -> int:
        """Bytes of all artifacts."""
        return sum(entry.stat().st_size for entry in os.scandir(self.path) if entry.is_file())

    def verify(self, sha256: str) -> bool:
        """Whether the bytes still have their hash; a file that lies is removed."""
        path = self.file(sha256)
        with path.open("rb") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
        if found != sha256:
            path.unlink(missing_ok=True)
        return found == sha256

    def remove(self, sha256: str) -> None:
        """Forget an artifact, sealed or not; absent is fine."""
        self._file(sha256).unlink(missing_ok=True)
        self.sealed_path(sha256).unlink(missing_ok=True)

    def remove_plain(self, sha256: str) -> None:
        """Keep only the sealed form, where there is one."""
        if self.sealed_file(sha256) is not None:
            self._file(sha256).unlink(missing_ok=True)

    def hashes(self) -> frozenset[str]:
        """All artifacts that are here."""
        return frozenset(
            name
            for entry in os.scandir(self.path)
            if _SHA256.fullmatch(name := entry.name.removesuffix(SEALED_SUFFIX))
        )

    def check_room(self, nbytes: int) -> None:
        """Raises TooLarge over the quota and Unavailable when the disk has not enough room, even
        without uploads that broke off."""
        while not self._has_room(nbytes) and self.partials.give_room():
            pass
        used = self.used_bytes()
        if used + nbytes > self._quota_bytes:
            raise TooLarge(
                f"{nbytes} more bytes would make {used + nbytes}, over the artifact quota of "
                f"{self._quota_bytes}",
                hint="remove models with `din model remove` or raise artifact_quota_mib",
            )
        free = shutil.disk_usage(self.path).free
        if nbytes + FREE_BYTES_KEPT > free:
            raise Unavailable(
                f"{nbytes} bytes do not fit on the disk of {self.path}: {free} free, "
                f"{FREE_BYTES_KEPT} are kept",
                hint="free some space, then try again",
            )

    def room_bytes(self, wanted: int) -> int:
        """How much may be written. Uploads that broke off are given up where less than `wanted`
        may be."""
        while not self._has_room(wanted) and self.partials.give_room():
            pass
        free = shutil.disk_usage(self.path).free - FREE_BYTES_KEPT
        return max(0, min(free, self._quota_bytes - self.used_bytes()))

    def _has_room(self, nbytes: int) -> bool:
        is_within = self.used_bytes() + nbytes <= self._quota_bytes
        return is_within and nbytes + FREE_BYTES_KEPT <= shutil.disk_usage(self.path).free

    def uploaded_bytes(self, sha256: str) -> int:
        """How much is here of a file that is being uploaded, or whose upload broke off."""
        return self.partials.nbytes(self._file(sha256).name)

    async def put(
        self,
        sha256: str,
        body: AsyncIterator[bytes],
        nbytes: int,
        sealer: Sealer | None = None,
        start: int = 0,
    ) -> None:
        """Store a stream under its hash: the bytes from `start` of `nbytes` in all, where the
        upload before broke off; with a sealer in sealed form.

        Raises UsageError when hash or length differ, Conflict when it cannot go on at `start`,
        TooLarge and Unavailable like `check_room`.
        """
        target = self._file(sha256)
        if target.exists() or self.sealed_file(sha256) is not None:
            async for _ in body:
                pass
            return
        try:
            if sealer is not None:
                await self._put_sealed(sha256, body, nbytes, sealer, start)
            elif start == 0 and self.partials.is_busy(sha256):
                part = target.with_name(f"{sha256}.part-{os.getpid()}-{id(body)}")
                try:
                    await self._put_plain(sha256, body, nbytes, part, 0)
                finally:
                    _remove(part)
            else:
                with self.partials.written(sha256, start) as part:
                    await self._put_plain(sha256, body, nbytes, part, start)
            _sync_folder(self.path)
        except OSError as fault:
            raise _disk_fault(self.path, fault) from fault

    async def _put_sealed(
        self, sha256: str, body: AsyncIterator[bytes], nbytes: int, sealer: Sealer, start: int
    ) -> None:
        self.partials.remove(sha256)  # that is plain
        if start:
            raise Conflict(
                "an upload that is sealed as it comes cannot go on where another one broke off",
                hint="send it from its first byte",
            )
        self.check_room(sealer.nbytes)
        part = self._file(sha256).with_name(f"{sha256}.part-{os.getpid()}-{id(body)}")
        try:
            with part.open("wb") as sink:
                sealing = _SealingSink(sink, sealer)
                await _copy(body, sealing, sha256, nbytes, hashlib.sha256(), 0)
                sealing.finish()
                sink.flush()
                os.fsync(sink.fileno())
            part.rename(self.sealed_path(sha256))
        finally:
            _remove(part)

    async def _put_plain(
        self, sha256: str, body: AsyncIterator[bytes], nbytes: int, part: Path, start: int
    ) -> None:
        """What came stays in the part when the stream breaks; what is wrong or does not fit does
        not."""
        try:
            self.check_room(nbytes - start)
            digest = await asyncio.to_thread(digest_of_part, part, start)
            with part.open("ab" if start else "wb") as sink:
                await _copy(body, sink, sha256, nbytes, digest, start)
                sink.flush()
                os.fsync(sink.fileno())
            self._settle(part, sha256)
        except (OSError, UsageError):
            _remove(part)
            raise

    def _settle(self, part: Path, sha256: str) -> None:
        if self.sealed_file(sha256) is None:
            part.rename(self._file(sha256))
        else:  # it came sealed meanwhile: that is enough
            _remove(part)

    def adopt(self, file: Path, sha256: str) -> None:
        """Move a file that is already whole and hashed (the carver's output) into the folder."""
        try:
            file.replace(self._file(sha256))
            _sync_folder(self.path)
        except OSError as fault:
            raise _disk_fault(self.path, fault) from fault

    def _file(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise UsageError(
                f"{sha256[:80]!r} is not a SHA256",
                hint="64 lowercase hexadecimal digits",
            )
        return self.path / sha256


class _SealingSink:
    """Gathers whole chunks, and writes them sealed."""

    def __init__(self, sink: BinaryIO, sealer: Sealer) -> None:
        self._sink = sink
        self._sealer = sealer
        self._gathered = bytearray()
        sink.write(sealer.head)

    def write(self, piece: bytes, /) -> None:
        """What came next of the content."""
        self._gathered += piece
        size = self._sealer.chunk_bytes
        while len(self._gathered) >= size:
            self._sink.write(self._sealer.seal(self._gathered[:size]))
            del self._gathered[:size]

    def finish(self) -> None:
        """The content is whole."""
        if self._gathered:
            self._sink.write(self._sealer.seal(self._gathered))


async def _copy(
    body: AsyncIterator[bytes],
    sink: BinaryIO | _SealingSink,
    sha256: str,
    nbytes: int,
    digest: Any,
    received: int,
) -> None:
    """`digest` and `received` are those of what came before."""
    async for chunk in body:
        received += len(chunk)
        if received > nbytes:
            break
        digest.update(chunk)
        sink.write(chunk)
    if received != nbytes:
        raise UsageError(
            f"upload of {sha256[:12]}… announced {nbytes} bytes and sent "
            f"{'more' if received > nbytes else received}",
            hint="send the file again",
        )
    if digest.hexdigest() != sha256:
        raise UsageError(
            f"uploaded bytes have SHA256 {digest.hexdigest()[:12]}…, not {sha256[:12]}…",
            hint="the file changed while it was sent, or the link damaged it: send it again",
        )


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_fault(path: Path, fault: OSError) -> Unavailable:
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(
            f"the disk of {path} is full ({fault.strerror})",
            hint="free some space, then try again; nothing was stored",
        )
    return Unavailable(f"cannot write to {path}: {fault}", hint="check permissions and the disk")
