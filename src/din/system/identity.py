"""Who this program is, across restarts: an id made once and a session that counts up at each start.

Both live in the state directory, which one process at a time may claim. Files are replaced, never
edited, so that a power cut leaves the old one or the new one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from din.domain.malformed import MALFORMED
from din.errors import Conflict, Denied, DinError, Unavailable
from din.system.privacy import make_private, narrow

IDENTITY_FILE: Final = "identity.json"
LOCK_FILE: Final = "lock"
IDENTITY_BYTES_MAX: Final = 4096
SESSION_MAX: Final = 2**32 - 1
NODE_STRIDE: Final = 10_000
"""Two nodes with copies of one directory count from the same number. Steps by chance make one of
them newer, so that the other is told instead of both being taken for one. Enough for 800,000 starts
before the count begins again."""
_SERIAL_FILES: Final = ("proc/device-tree/serial-number", "sys/class/dmi/id/product_uuid")


class Identity(Struct, frozen=True, kw_only=True):
    """The id and the session of this start."""

    node_id: str
    """16 lowercase hex digits; gateways use it as their gateway id."""
    session: int
    warnings: tuple[str, ...] = ()


class _Stored(Struct, kw_only=True):
    """What identity.json holds."""

    node_id: str
    session: int
    hardware: str = ""
    """Digest of the board's serial number, or empty where none can be read."""


class DirectoryClaim:
    """A state directory that belongs to this process until `close`."""

    def __init__(self, path: Path, lock_fd: int, warnings: tuple[str, ...] = ()) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._warnings = warnings

    def close(self) -> None:
        """Give the directory up. May be called twice."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> DirectoryClaim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_identity(self, root: Path = Path("/"), *, stride: int = 1) -> Identity:
        """Read or make the id and count the start, by 1 to `stride`. Raises Unavailable (disk) or
        Denied."""
        stored, warnings = _load(self.path / IDENTITY_FILE)
        warnings = (*self._warnings, *warnings)
        hardware = _hardware_digest(root)
        if stored and hardware and stored.hardware and stored.hardware != hardware:
            warnings = (
                *warnings,
                f"the state directory {self.path} was copied from another machine: this node gets "
                f"a new id instead of {stored.node_id}",
            )
            stored = None
        if stored is None:
            stored = _Stored(node_id=secrets.token_hex(8), session=0)
        stored.session = (stored.session + secrets.randbelow(stride)) % SESSION_MAX + 1
        stored.hardware = hardware or stored.hardware
        write_atomically(self.path / IDENTITY_FILE, msgspec.json.encode(stored) + b"\n")
        return Identity(node_id=stored.node_id, session=stored.session, warnings=warnings)


def claim_directory(path: Path, program: str) -> DirectoryClaim:
    """Make the directory if need be, close it to others and claim it. Raises Conflict naming the
    process that has it, Denied without permission, Unavailable when the disk is full."""
    lock_path = path / LOCK_FILE
    try:
        make_private(path)
        warning = narrow(path)
        lock_fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_error(lock_path, error) from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock_fd, 200, 0).decode(errors="replace").strip()
        os.close(lock_fd)
        raise Conflict(
            f"state directory {path} is in use by {holder or 'another process'}",
            hint="stop that process, or give this one a directory of its own (--state-dir)",
        ) from None
    try:
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{program} with pid {os.getpid()}\n".encode(), 0)
    except OSError as error:
        os.close(lock_fd)
        raise disk_error(lock_path, error) from error
    return DirectoryClaim(path, lock_fd, (warning,) if warning else ())


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace a small file so that readers and power cuts see the old or the new one; never for an
    instant is it open to more than `mode` says. Raises Unavailable when the disk is full, Denied
    without permission."""
    write_together({path: content}, mode=mode)


def write_together(contents: Mapping[Path, bytes], *, mode: int = 0o644) -> None:
    """Replace files of one folder as `write_atomically` does, and wait for the disk but twice. The
    last name is replaced last, so it stands for all."""
    folder = next(iter(contents)).parent
    temporaries: dict[Path, Path] = {}
    numbers: list[int] = []
    try:
        for path, content in contents.items():
            temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
            with suppress(FileNotFoundError):
                temporary.unlink()  # of a process that died, or put there by somebody else
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            numbers.append(os.open(temporary, flags, mode))
            temporaries[path] = temporary
            with open(numbers[-1], "wb", closefd=False) as file:
                file.write(content)
        _sync_all(numbers)
        for path, temporary in temporaries.items():
            temporary.replace(path)
        numbers.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        os.fsync(numbers[-1])
    except OSError as error:
        for temporary in temporaries.values():
            with suppress(OSError):
                temporary.unlink()
        raise disk_error(tuple(contents)[-1], error) from error
    finally:
        for number in numbers:
            os.close(number)


def _sync_all(numbers: Sequence[int]) -> None:
    """At once, since a disk takes several in the time of one."""
    if len(numbers) == 1:
        os.fsync(numbers[0])
        return
    from concurrent.futures import ThreadPoolExecutor  # brings `logging`: not for every command

    with ThreadPoolExecutor(len(numbers)) as pool:
        for _ in pool.map(os.fsync, numbers):
            pass


def disk_error(path: Path, error: OSError) -> DinError:
    """The error to show when a file of the state directory cannot be written."""
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(
            f"cannot write {path}: {what}", hint=f"free some space on the disk of {path.parent}"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Denied(
            f"cannot write {path}: {what}",
            hint="give this user the directory, or choose another with --state-dir",
        )
    return Unavailable(f"cannot write {path}: {what}", hint="choose another with --state-dir")


def start_error(fault: DinError | OSError) -> DinError:
    """What a program says that could not start: a file of its state directory may be unusable in
    any way. Raises the fault again when it names no file."""
    if isinstance(fault, DinError):
        return fault
    if not isinstance(fault.filename, str):
        raise fault
    return disk_error(Path(fault.filename), fault)


def _load(path: Path) -> tuple[_Stored | None, tuple[str, ...]]:
    """What is stored; a file that cannot be understood is put aside with a warning, so that a
    damaged disk costs the identity and not the node."""
    try:
        with open(path, "rb") as file:
            raw = file.read(IDENTITY_BYTES_MAX)
    except FileNotFoundError:
        return None, ()
    except OSError as error:
        raise disk_error(path, error) from error
    try:
        stored = msgspec.json.decode(raw, type=_Stored)
        int(stored.node_id, 16)
        is_sound = len(stored.node_id) == 16 and 0 <= stored.session <= SESSION_MAX
    except (*MALFORMED, ValueError):
        is_sound, stored = False, None
    if is_sound and stored is not None and stored.node_id == stored.node_id.lower():
        return stored, ()
    aside = path.with_suffix(".broken")
    try:
        path.replace(aside)
    except OSError as error:
        raise disk_error(path, error) from error
    return None, (f"{path} could not be read and was put aside as {aside.name}: new node id",)


def _hardware_digest(root: Path) -> str:
    """Short digest of the board's serial number; empty where there is none to read."""
    for name in _SERIAL_FILES:
        try:
            serial = (root / name).read_bytes()[:256].strip(b"\0 \n")
        except OSError:
            continue
        if serial.strip(b"0-"):
            return hashlib.sha256(serial).hexdigest()[:16]
    return ""
