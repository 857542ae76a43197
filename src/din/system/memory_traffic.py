"""How many bytes the processor moves from and to memory, by counters of the hardware.

Where the kernel monitors memory bandwidth (resctrl, mounted), its counts; else misses of the last
cache, a line each, which leaves out what is written back. Both need rights that an ordinary user
lacks on most machines: then the reason is told, and nothing is guessed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from din.system.readings import read_number

LINE_BYTES: Final = 64
_HARDWARE: Final = 0
_CACHE_MISSES: Final = 3
_ATTRIBUTES: Final = struct.Struct("IIQQQQQIIQ")
"""struct perf_event_attr as of its first version, 64 bytes on every machine."""
_COUNT: Final = struct.Struct("Q")
_CLOSE_ON_EXEC: Final = 1 << 3
_CALLS_64: Final = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_CALLS_32: Final = {"i386": 336, "i686": 336, "x86_64": 336, "armv6l": 364, "armv7l": 364,
                    "armv8l": 364, "aarch64": 364}  # fmt: skip
"""By the kernel's name, for programs of 32 bits: a kernel of 64 may run one."""

Open = Callable[[int], int]
"""Opens a counter of cache misses of one core; the descriptor. Raises OSError."""


class NoTraffic(Exception):
    """The counters cannot be had; the text says why."""


class Traffic:
    """Bytes since it was made; `close` gives the counters back."""

    def __init__(
        self, cores: Collection[int], root: Path = Path("/"), open_counter: Open | None = None
    ) -> None:
        """Raises NoTraffic."""
        self._descriptors: list[int] = []
        self._files = _monitors(root)
        self._before: int = 0
        if not self._files:
            self._open_counters(cores, open_counter or open_cache_misses)
        self._before = self._count()

    @property
    def words(self) -> str:
        """Who counts."""
        return "resctrl" if self._files else "misses of the last cache"

    def nbytes(self) -> int:
        """Moved since it was made."""
        return max(0, self._count() - self._before)

    def close(self) -> None:
        """Give the counters back."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _open_counters(self, cores: Collection[int], open_counter: Open) -> None:
        try:
            for core in cores:
                self._descriptors.append(open_counter(core))
        except OSError as error:
            self.close()
            raise NoTraffic(_reason(error)) from error
        if not self._descriptors:
            raise NoTraffic("no core was asked for")

    def _count(self) -> int:
        if self._files:
            return sum(int(read_number(each) or 0) for each in self._files)
        misses = (_COUNT.unpack(os.read(each, _COUNT.size))[0] for each in self._descriptors)
        return sum(misses) * LINE_BYTES


def open_cache_misses(core: int) -> int:
    """A counter of misses of the last cache on one core, of every process. Raises OSError."""
    number = call_number(platform.machine(), is_64_bit=struct.calcsize("P") == 8)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = ctypes.create_string_buffer(
        _ATTRIBUTES.pack(_HARDWARE, _ATTRIBUTES.size, _CACHE_MISSES, 0, 0, 0, 0, 0, 0, 0)
    )
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.syscall(
        ctypes.c_long(number),
        attributes,
        ctypes.c_int(-1),
        ctypes.c_int(core),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)


def call_number(machine: str, *, is_64_bit: bool) -> int | None:
    """Of perf_event_open; None where it is not known."""
    return (_CALLS_64 if is_64_bit else _CALLS_32).get(machine)


def _monitors(root: Path) -> tuple[Path, ...]:
    found = (root / "sys/fs/resctrl/mon_data").glob("mon_L3_*/mbm_total_bytes")
    return tuple(each for each in sorted(found) if read_number(each) is not None)


def _reason(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            "counters of the whole machine are not allowed to this user: "
            "sysctl -w kernel.perf_event_paranoid=0, or CAP_PERFMON"
        )
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.ENOSYS):
        return "this processor, kernel or virtual machine has no counter of cache misses"
    return f"the counter of cache misses cannot be opened: {error.strerror}"
