"""An append-only journal of JSON lines, chained by hashes, in files of bounded size.

    {"seq":7,"previous":"<SHA256 of line 6>","entry":{...}}

Whoever edits, deletes or moves a line breaks the chain at the next one; `head` beside the files
names the last line, so a cut-off end is found as well. The chain has no key: one who may write all
files can write a new chain, which only a head noted elsewhere shows. Every append is synced to the
disk before it returns; a line that a power cut tore was never acknowledged, and is cut off at the
next start. When there are more files than allowed, a line that says what goes is written, then the
oldest file goes. Blocking, for one thread; knows nothing of what the entries mean.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from din.errors import Unavailable

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
FILES_MAX: Final = 8
LINE_BYTES_MAX: Final = 64 * 1024
PROBLEMS_MAX: Final = 16
NOTHING: Final = "0" * 64
"""Stands as `previous` in the first line."""

_FILE: Final = re.compile(r"(\d{12})\.jsonl")
_LINE: Final = re.compile(rb'\{"seq":(\d{1,18}),"previous":"([0-9a-f]{64})","entry":(\{.*\})\}')
_HEAD: Final = re.compile(rb"(\d{12}) ([0-9a-f]{64})\n")


class Dropped(Struct, frozen=True):
    """Lines that rotation takes away."""

    first_seq: int
    last_seq: int
    last_sha256: str


class Walk(Struct):
    """What a check of all lines found."""

    first_seq: int = 0
    first_previous: str = NOTHING
    last_seq: int = 0
    last_sha256: str = NOTHING
    problems: list[str] = []

    def add(self, problem: str) -> None:
        """Note one; the first ones say enough."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


class Journal:
    """One folder. `say_dropped` makes the entry that tells of dropped lines."""

    def __init__(
        self,
        folder: Path,
        say_dropped: Callable[[Dropped], bytes],
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        self._folder = folder
        self._say_dropped = say_dropped
        self._file_bytes_max = file_bytes_max
        self._files_max = max(2, files_max)
        self._seq = 0
        self._last_sha256 = NOTHING
        self._descriptor = -1
        self._head = -1
        self._size = 0

    def open(self) -> list[str]:
        """Find the end; answers what was wrong with it. Raises Unavailable naming the folder."""
        try:
            return self._open()
        except OSError as fault:
            self.close()
            raise self._failed(fault) from None

    def _open(self) -> list[str]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[str] = []
        files = self._files()
        path = files[-1] if files else self._folder / f"{1:012}.jsonl"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        found += self._cut_torn_line(path)
        walk = Walk()
        for each in files[-2:]:  # the last file may be empty: its beginning was all that was torn
            _walk_file(each, walk)
        self._seq, self._last_sha256 = walk.last_seq, walk.last_sha256
        self._size = os.fstat(self._descriptor).st_size
        found += self._compare_head()
        _sync_folder(self._folder)
        return found

    def _cut_torn_line(self, path: Path) -> list[str]:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole == len(data):
            return []
        os.ftruncate(self._descriptor, whole)
        return [f"{len(data) - whole} bytes of an unfinished line were cut off {path.name}"]

    def _compare_head(self) -> list[str]:
        self._head = os.open(self._folder / "head", os.O_RDWR | os.O_CREAT, 0o600)
        known = _HEAD.fullmatch(os.pread(self._head, 200, 0))
        if known is None:
            return [] if not self._seq else ["head was missing or broken"]
        seq, sha256 = int(known[1]), known[2].decode()
        if seq > self._seq:
            # Numbers are not used twice: the gap stays visible.
            missing = f"lines {self._seq + 1} to {seq} are missing at the end"
            self._seq, self._last_sha256 = seq, sha256
            return [missing]
        if seq == self._seq and sha256 != self._last_sha256:
            return [f"line {seq} is not the one that was written"]
        return []

    def close(self) -> None:
        """Close the files. May be called twice."""
        for descriptor in (self._descriptor, self._head):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._head = -1

    @property
    def is_open(self) -> bool:
        """Whether lines can be written."""
        return self._descriptor >= 0

    def append(self, entries: Sequence[bytes]) -> int:
        """Write JSON objects as lines, synced; answers the last number. Raises Unavailable, and
        then none of them is there."""
        if not self.is_open:
            raise Unavailable(f"the journal {self._folder} is not open")
        try:
            if self._size >= self._file_bytes_max:
                self._rotate()
            self._write(entries)
        except OSError as fault:
            raise self._failed(fault) from None
        return self._seq

    def _write(self, entries: Sequence[bytes]) -> None:
        seq, sha256 = self._seq, self._last_sha256
        lines: list[bytes] = []
        for entry in entries:
            seq += 1
            line = b'{"seq":%d,"previous":"%s","entry":%s}' % (seq, sha256.encode(), entry)
            assert len(line) <= LINE_BYTES_MAX, "callers bound their entries"
            sha256 = hashlib.sha256(line).hexdigest()
            lines.append(line + b"\n")
        data = b"".join(lines)
        try:
            done = 0
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
            os.fsync(self._descriptor)
            # Also this needs room where the disk writes nothing in place.
            os.pwrite(self._head, b"%012d %s\n" % (seq, sha256.encode()), 0)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._seq, self._last_sha256, self._size = seq, sha256, self._size + len(data)

    def _rotate(self) -> None:
        path = self._folder / f"{self._seq + 1:012}.jsonl"
        following = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.close(self._descriptor)
        self._descriptor, self._size = following, 0
        _sync_folder(self._folder)
        files = self._files()
        surplus = files[: -self._files_max] if len(files) > self._files_max else []
        for old in surplus:
            walk = Walk()
            _walk_file(old, walk)
            gone = Dropped(walk.first_seq, walk.last_seq, walk.last_sha256)
            self._write([self._say_dropped(gone)])
            old.unlink()

    def newest_first(self) -> Iterator[bytes]:
        """Lines from the last to the first, without their ends. Raises Unavailable."""
        try:
            for path in reversed(self._files()):
                yield from reversed(path.read_bytes().splitlines())
        except OSError as fault:
            raise self._failed(fault) from None

    def walk(self) -> Walk:
        """Check every line. Raises Unavailable when a file cannot be read."""
        walk = Walk()
        try:
            for path in self._files():
                _walk_file(path, walk)
        except OSError as fault:
            raise self._failed(fault) from None
        if (walk.last_seq, walk.last_sha256) != (self._seq, self._last_sha256):
            walk.add(f"the end is line {walk.last_seq}, but line {self._seq} was the last written")
        return walk

    def _files(self) -> list[Path]:
        named = (each for each in self._folder.iterdir() if _FILE.fullmatch(each.name))
        return sorted(named, key=lambda each: each.name)

    def _failed(self, fault: OSError) -> Unavailable:
        return Unavailable(
            f"the journal {self._folder} failed: {fault.strerror or fault}",
            hint="check free space and permissions of that folder",
        )


def _walk_file(path: Path, walk: Walk) -> None:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None:
            walk.add(f"{path.name} line {number} is no line of the journal")
            continue
        seq, previous = int(found[1]), found[2].decode()
        if not walk.last_seq:
            walk.first_seq, walk.first_previous = seq, previous
        elif seq != walk.last_seq + 1:
            walk.add(f"{path.name} line {number}: {seq} follows {walk.last_seq}")
        elif previous != walk.last_sha256:
            walk.add(f"line {walk.last_seq} was changed: {seq} names another content")
        walk.last_seq, walk.last_sha256 = seq, hashlib.sha256(line).hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
