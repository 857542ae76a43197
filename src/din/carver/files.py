"""The carver's two touches of the disk: the model file in, slices out."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Final

from din.errors import BadModel, Denied, DinError, NotFound, TooLarge, Unavailable
from din.system.descriptors import send_message

MODEL_FILE_BYTES_MAX: Final = 2 * 1024**3
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PERMIT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def model_size(path: Path) -> int:
    """Bytes of a model file. Raises NotFound, Denied, BadModel for what is no file, TooLarge."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise _reading_failed(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "no ordinary file"
        raise BadModel(f"{path} is {what}", hint="give the path of an .onnx file")
    if found.st_size > MODEL_FILE_BYTES_MAX:
        raise TooLarge(
            f"{path} has {found.st_size} bytes; one ONNX file has at most {MODEL_FILE_BYTES_MAX}",
            hint="register a smaller or quantised model",
        )
    return found.st_size


def load_model(path: Path, size: int) -> bytes:
    """The file's bytes, no more than it had when it was measured. Raises as `model_size`."""
    try:
        with path.open("rb") as stream:
            return stream.read(size)
    except OSError as error:
        raise _reading_failed(path, error) from None


def store_slice(folder: Path, sha256: str, data: bytes) -> None:
    """Write bytes under their hash: whole and on the disk, or not at all.

    Raises NotFound without the folder, Unavailable for a full disk, Denied.
    """
    part = ""
    try:
        handle, part = tempfile.mkstemp(dir=folder, prefix=".part-")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(part).replace(folder / sha256)
        _sync_folder(folder)
    except OSError as error:
        if part:
            Path(part).unlink(missing_ok=True)
        raise _writing_failed(folder, len(data), error) from None


def give_slice(socket_fd: int, sha256: str, data: bytes) -> None:
    """Send bytes as a memory file, with their hash, to whoever asked. Raises Unavailable."""
    descriptor = -1
    try:
        descriptor = os.memfd_create("din-carved", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb", closefd=False) as stream:
            stream.write(data)
        with socket.socket(fileno=os.dup(socket_fd)) as sink:
            send_message(sink, sha256.encode(), [descriptor])
    except OSError as error:
        raise Unavailable(
            f"a slice of {len(data)} bytes found no room in memory: {error.strerror}",
            hint="free memory on the gateway and register the model again",
        ) from None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


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
            f"no room for a slice of {nbytes} bytes in {folder}",
            hint="free some disk space and register the model again",
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(
            f"there is no folder {folder} for the slices", hint="make the folder, then try again"
        )
    if error.errno in _NO_PERMIT:
        return Denied(f"{folder} may not be written", hint="check the folder's permissions")
    return Unavailable(f"slices cannot be written to {folder}: {error}", hint="check the disk")
