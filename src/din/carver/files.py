"""The carver's two touches of the disk: model files in, slices and packs out."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from din.errors import BadModel, Denied, DinError, NotFound, TooLarge, Unavailable
from din.system.descriptors import send_message

MODEL_FILE_BYTES_MAX: Final = 2 * 1024**3
"""A protobuf message ends here."""

WEIGHTS_FILE_BYTES_MAX: Final = 256 * 1024**3

Content = mmap.mmap | bytes
Piece = bytes | memoryview

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PERMIT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def map_file(path: Path, bytes_max: int) -> Content:
    """A file's content, to be read in place. Raises NotFound, Denied, BadModel for what is no file,
    TooLarge."""
    try:
        # Opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _reading_failed(path, error) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            what = "a folder" if stat.S_ISDIR(found.st_mode) else "no ordinary file"
            raise BadModel(f"{path} is {what}", hint="give the path of an .onnx file")
        if found.st_size > bytes_max:
            raise TooLarge(
                f"{path} has {found.st_size} bytes; such a file has at most {bytes_max}",
                hint="an ONNX file over 2 GB keeps its weights in files beside it",
            )
        if found.st_size == 0:
            return b""
        return mmap.mmap(descriptor, found.st_size, prot=mmap.PROT_READ)
    except OSError as error:
        raise _reading_failed(path, error) from None
    finally:
        os.close(descriptor)


class Room:
    """How many bytes may still be written; None = as many as the disk takes."""

    def __init__(self, nbytes: int | None) -> None:
        self._nbytes = nbytes
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """Before so many are written. Raises Unavailable, so that the disk is not filled first."""
        self._taken += nbytes
        if self._nbytes is not None and self._taken > self._nbytes:
            raise Unavailable(
                f"slices need {self._taken} bytes or more on the gateway's disk, and "
                f"{self._nbytes} may be written",
                hint="free some space, remove models with `din model remove`, or raise "
                "artifact_quota_mib",
            )


def store_file(folder: Path, pieces: Iterable[Piece], nbytes: int) -> str:
    """Write pieces as one file under its SHA256, which is returned: whole and on the disk, or not
    at all. Nothing is kept in memory.

    Raises NotFound without the folder, Unavailable for a full disk, Denied.
    """
    part = ""
    try:
        handle, part = tempfile.mkstemp(dir=folder, prefix=".part-")
        with os.fdopen(handle, "wb", buffering=0) as stream:
            sha256 = _write(stream, pieces)
            os.fsync(stream.fileno())
        Path(part).replace(folder / sha256)
        _sync_folder(folder)
    except BaseException as error:
        if part:
            Path(part).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _writing_failed(folder, nbytes, error) from None
        raise
    return sha256


def give_file(socket_fd: int, pieces: Iterable[Piece], nbytes: int) -> str:
    """Send pieces as a memory file to whoever asked, with its SHA256, which is returned. Raises
    Unavailable."""
    descriptor = -1
    try:
        descriptor = os.memfd_create("din-carved", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb", buffering=0, closefd=False) as stream:
            sha256 = _write(stream, pieces)
        with socket.socket(fileno=os.dup(socket_fd)) as sink:
            send_message(sink, sha256.encode(), [descriptor])
    except OSError as error:
        raise Unavailable(
            f"a file of {nbytes} bytes found no room in memory: {error.strerror}",
            hint="free memory on the gateway and register the model again",
        ) from None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return sha256


def sha256_of(pieces: Iterable[Piece]) -> str:
    """What the file would be called that the pieces make."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _write(stream: FileIO, pieces: Iterable[Piece]) -> str:
    return sha256_of(_written(stream, pieces))


def _written(stream: FileIO, pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        left = memoryview(piece)
        while left:
            left = left[stream.write(left) :]
        yield piece


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reading_failed(path: Path, error: OSError | ValueError) -> DinError:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"there is no file {path}", hint="check the path of the model")
    if number in _NO_PERMIT:
        return Denied(f"{path} may not be read", hint="check the file's owner and permissions")
    return BadModel(f"{path} cannot be read: {error}", hint="check the path and the disk")


def _writing_failed(folder: Path, nbytes: int, error: OSError) -> DinError:
    if error.errno in _NO_ROOM:
        return Unavailable(
            f"no room for a file of {nbytes} bytes in {folder}",
            hint="free some disk space and register the model again",
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(
            f"there is no folder {folder} for the slices", hint="make the folder, then try again"
        )
    if error.errno in _NO_PERMIT:
        return Denied(f"{folder} may not be written", hint="check the folder's permissions")
    return Unavailable(f"slices cannot be written to {folder}: {error}", hint="check the disk")
