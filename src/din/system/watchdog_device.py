"""/dev/watchdog: the machine restarts itself when the agent's loop stands still.

Opened only when the operator asks for it: from then on the hardware restarts the machine unless it
is fed. It is fed by a thread, since a write may block, and only while the loop has shown in time
that it still turns. An orderly end writes the magic character, which disarms it.
"""

from __future__ import annotations

import fcntl
import os
import platform
import struct
import threading
from collections.abc import Callable
from typing import Final

from din.errors import Denied, DinError, Unavailable
from din.system.clock import monotonic_ms

TIMEOUT_S: Final = 60
"""Asked of the hardware; it may give another."""
TIMEOUT_S_MIN: Final = 4
MAGIC_CLOSE: Final = b"V"
_INT: Final = struct.Struct("i")
_READ, _WRITE = "read", "write"


def ioctl_number(
    directions: tuple[str, ...], kind: str, number: int, size: int, machine: str = ""
) -> int:
    """Linux's _IOR and _IOWR: most machines encode them alike; MIPS, PowerPC, SPARC and Alpha have
    13 bits of size and three of direction."""
    machine = machine or platform.machine()
    is_odd = machine.startswith(("mips", "ppc", "sparc", "alpha"))
    read, write, shift = (2, 4, 29) if is_odd else (2, 1, 30)
    direction = sum({_READ: read, _WRITE: write}[each] for each in directions)
    return direction << shift | size << 16 | ord(kind) << 8 | number


SET_TIMEOUT: Final = ioctl_number((_READ, _WRITE), "W", 6, _INT.size)
GET_TIMEOUT: Final = ioctl_number((_READ,), "W", 7, _INT.size)


class WatchdogDevice:
    """An armed watchdog. `alive` says that the loop turns; without it the machine restarts."""

    def __init__(
        self,
        path: str,
        report: Callable[..., None],
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Opens and so arms it. Raises Denied, Unavailable."""
        self._report = report
        self._clock_ms = clock_ms
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _open_error(path, error) from error
        self.timeout_s = self._agree()
        self._alive_ms = clock_ms()
        self._stopping = threading.Event()
        self._is_starved = False
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to feed."""
        self.alive()
        self._thread.start()

    def alive(self) -> None:
        """The loop turns. Called by the loop."""
        self._alive_ms = self._clock_ms()

    def feed(self) -> bool:
        """Feed once if the loop showed itself within half the timeout; whether it was fed."""
        silent_ms = self._clock_ms() - self._alive_ms
        if silent_ms > self.timeout_s * 500:
            if not self._is_starved:
                self._is_starved = True
                self._report("watchdog_starved", silent_ms=silent_ms, restart_in_s=self.timeout_s)
            return False
        self._is_starved = False
        try:
            os.write(self._descriptor, b"\0")
        except OSError as error:
            self._report("watchdog_failed", reason=error.strerror or str(error))
            return False
        return True

    def close(self) -> None:
        """Disarm and close."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(1.0)
        try:
            os.write(self._descriptor, MAGIC_CLOSE)
            os.close(self._descriptor)
        except OSError as error:
            self._report("watchdog_failed", reason=error.strerror or str(error))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.feed()
            self._stopping.wait(self.timeout_s / 4)

    def _agree(self) -> int:
        """The time-out in force; the shortest is assumed of a driver that does not tell its own."""
        agreed_s = TIMEOUT_S_MIN
        for call in (SET_TIMEOUT, GET_TIMEOUT):
            said = bytearray(_INT.pack(TIMEOUT_S))
            try:
                fcntl.ioctl(self._descriptor, call, said, True)
            except OSError:
                continue
            agreed_s = max(TIMEOUT_S_MIN, _INT.unpack(said)[0])
        return agreed_s


def _open_error(path: str, error: OSError) -> DinError:
    if isinstance(error, PermissionError):
        return Denied(
            f"watchdog {path} may not be opened by this user",
            hint="run the node as root, or give its group the device by a udev rule",
        )
    busy = "; systemd or another program has it" if error.errno == 16 else ""
    return Unavailable(
        f"watchdog {path} cannot be opened: {error.strerror}{busy}",
        hint="leave out watchdog_device, or see RuntimeWatchdogSec in /etc/systemd/system.conf",
    )
