"""Layers of an image become one folder: files, links and whiteouts, and nothing outside of it.

A path that leaves the folder, by `..`, by being absolute or through a link that an earlier entry
made, ends the whole. Devices, sockets and pipes are not made: a container gets its /dev from the
runtime. Bits that raise privileges are dropped.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

from din.errors import TooLarge, UsageError
from din.runner.image import CHUNK_BYTES, Image, Look, blob_of, kind_of

UNPACKED_BYTES_MAX: Final = 128 * 1024**3
ENTRIES_MAX: Final = 4_000_000
LINKS_MAX: Final = 40
"""On the way to one file."""
PATH_BYTES_MAX: Final = 4096
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


_UNREADABLE = (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError)
"""What damaged archives, and numbers and words that no file can have, end in."""


class Unpacking:
    """Of one image into one folder, which nobody else touches meanwhile."""

    def __init__(self, root: Path, look: Look, *, nbytes_max: int = UNPACKED_BYTES_MAX) -> None:
        self._root = root
        self._look = look
        self._nbytes_left = nbytes_max
        self._nbytes_max = nbytes_max
        self._entries_left = ENTRIES_MAX
        self._made: set[Path] = set()
        """By the layer that is being read: its own whiteouts do not hide it."""
        self._folders: dict[Path, tuple[int, float]] = {}
        """Modes are set at the end: a folder may be read-only."""
        self._owns = os.geteuid() == 0

    def unpack(self, image: Image) -> None:
        """All layers, the lowest first. Raises UsageError or TooLarge."""
        self._root.mkdir(mode=0o755)
        for layer in image.layers:
            self._made.clear()
            try:
                with blob_of(image.folder, layer).open("rb") as file:
                    plain = gzip.GzipFile(fileobj=file) if kind_of(layer) else file
                    self._layer(cast("BinaryIO", plain))
            except _UNREADABLE as error:
                raise UsageError(f"layer {layer.digest} cannot be read: {error!s:.200}") from None
            except (UsageError, TooLarge) as error:
                told = f"layer {layer.digest}: {error.message}"
                raise type(error)(told, hint=error.hint) from None
            except OSError as error:
                raise UsageError(
                    f"layer {layer.digest} cannot be unpacked: {error.strerror or error}"
                    + (f": {error.filename}" if error.filename else ""),
                    hint="see the free space and rights of the node's state directory",
                ) from error
        self._set_modes()

    def _set_modes(self) -> None:
        real = self._root.resolve()
        for path, (mode, mtime) in sorted(self._folders.items(), reverse=True):
            # A later entry may have put a link in the place of a folder on the way, to anywhere.
            if path.is_dir() and path.resolve() == real / path.relative_to(self._root):
                path.chmod(mode)
                with suppress(OverflowError, ValueError):  # a time that no file can have
                    os.utime(path, (mtime, mtime))

    def _layer(self, file: BinaryIO) -> None:
        with tarfile.open(fileobj=file, mode="r|", errorlevel=2) as archive:
            for entry in archive:
                self._look()
                self._entries_left -= 1
                if self._entries_left < 0:
                    raise TooLarge(f"the image has more than {ENTRIES_MAX} entries")
                self._entry(archive, entry)
                archive.__dict__["members"] = []  # it would keep all of them

    def _entry(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        names = _names(entry.name)
        if not names:
            return  # the root itself
        folder, name = self._inside(names[:-1], entry.name), names[-1]
        if name == OPAQUE:
            self._clear(folder)
            return
        if name.startswith(WHITEOUT):
            hidden = name.removeprefix(WHITEOUT)
            if hidden in ("", ".", ".."):
                raise UsageError(f"entry {entry.name!r:.200} hides nothing that could be there")
            if folder / hidden not in self._made:
                _remove(folder / hidden)
            return
        self._note(folder / name)
        self._make(archive, entry, folder / name)

    def _make(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
        mode = stat.S_IMODE(entry.mode) & 0o777
        if entry.isdir():
            if path.is_symlink() or not path.is_dir():
                _remove(path)
                path.mkdir(mode=0o700)
            self._own(path, entry)
            self._folders[path] = (mode, entry.mtime)
            return
        if not (entry.isreg() or entry.issym() or entry.islnk()):
            return
        target = self._hard_target(entry) if entry.islnk() else path
        if target == path and entry.islnk():
            return
        _remove(path)
        if entry.issym():
            path.symlink_to(entry.linkname)
            self._own(path, entry)
        elif entry.islnk():
            os.link(target, path, follow_symlinks=False)
        else:
            self._write(archive, entry, path, mode)

    def _write(
        self, archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path, mode: int
    ) -> None:
        self._nbytes_left -= entry.size
        if self._nbytes_left < 0:
            raise TooLarge(f"the image has more than {self._nbytes_max} bytes unpacked")
        source = archive.extractfile(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            while source is not None and (chunk := source.read(CHUNK_BYTES)):
                self._look()
                file.write(chunk)
        self._own(path, entry)
        path.chmod(mode)
        os.utime(path, (entry.mtime, entry.mtime))  # compiled Python is believed by it

    def _hard_target(self, entry: tarfile.TarInfo) -> Path:
        names = _names(entry.linkname)
        if not names:
            raise UsageError(f"entry {entry.name!r:.200} is a link to the root")
        target = self._inside(names[:-1], entry.linkname) / names[-1]
        if target.is_symlink() or not target.is_file():
            if target.is_symlink():
                return target
            raise UsageError(
                f"entry {entry.name!r:.200} is a link to {entry.linkname!r:.200}, which is no file"
            )
        return target

    def _inside(self, names: list[str], told: str) -> Path:
        """The real folder of a path, made where it is missing; links go where a container would
        see them go. Raises UsageError for one that leaves the root."""
        here, left, links = self._root, list(reversed(names)), 0
        while left:
            name = left.pop()
            if name == "..":
                if here == self._root:
                    raise UsageError(f"path {told!r:.200} leaves the image")
                here = here.parent
                continue
            path = here / name
            if path.is_symlink():
                links += 1
                if links > LINKS_MAX:
                    raise UsageError(f"path {told!r:.200} goes through over {LINKS_MAX} links")
                target = str(path.readlink())
                if target.startswith("/"):
                    here = self._root
                left += [each for each in reversed(target.split("/")) if each not in ("", ".")]
                continue
            if not path.exists():
                path.mkdir(mode=0o755)
                self._note(path)
                self._folders[path] = (0o755, 0)
            elif not path.is_dir():
                raise UsageError(f"path {told!r:.200} goes through {name!r:.80}, which is a file")
            here = path
        return here

    def _note(self, path: Path) -> None:
        while path != self._root and path not in self._made:
            self._made.add(path)
            path = path.parent

    def _clear(self, folder: Path) -> None:
        """Away with what lower layers put there."""
        for each in folder.iterdir():
            if each not in self._made:
                _remove(each)
            elif each.is_dir() and not each.is_symlink():
                self._clear(each)

    def _own(self, path: Path, entry: tarfile.TarInfo) -> None:
        if self._owns:
            os.chown(path, entry.uid, entry.gid, follow_symlinks=False)


def _names(text: str) -> list[str]:
    """The parts of a path in a layer. Raises UsageError for one that leaves it."""
    names = [each for each in text.split("/") if each not in ("", ".")]
    if text.startswith("/") or ".." in names or "\0" in text:
        raise UsageError(f"path {text!r:.200} leaves the image")
    if len(os.fsencode(text)) > PATH_BYTES_MAX:
        raise UsageError(f"path {text!r:.80} is longer than {PATH_BYTES_MAX} bytes")
    return names


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
