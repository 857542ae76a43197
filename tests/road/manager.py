"""A stand-in for systemd as a service sees it: the other end of NOTIFY_SOCKET, sd_notify(3)."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

CREDENTIALS: Final = struct.Struct("3i")


class Told(NamedTuple):
    """One datagram, and the process that the kernel says it came from."""

    pid: int
    facts: dict[str, str]


class Manager:
    """Hears what services say. `path`: a socket in the file system instead of an abstract one."""

    def __init__(self, path: Path | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.address = str(path) if path is not None else f"@din-test-{secrets.token_hex(8)}"
        self._socket.bind(self.address.replace("@", "\0", 1) if path is None else self.address)
        self.heard: list[Told] = []

    def __enter__(self) -> Manager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def variables(self, watchdog_s: float = 0.0) -> dict[str, str]:
        """What the manager gives a service."""
        given = {"NOTIFY_SOCKET": self.address}
        return given | ({"WATCHDOG_USEC": str(int(watchdog_s * 1e6))} if watchdog_s else {})

    def words(self, watchdog_s: float = 0.0) -> list[str]:
        """Words before a command that is to have them; the process stays the same one."""
        return ["env", *(f"{name}={text}" for name, text in self.variables(watchdog_s).items())]

    def hear(self, key: str, text: str | None = None, seconds: float = 30) -> Told:
        """The next datagram with this key, and with this text in its value."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                told = self._receive()
            except TimeoutError:
                break
            if key in told.facts and (text is None or text in told.facts[key]):
                return told
        message = f"no {key} {text or ''} within {seconds} s; heard {self.heard}"
        raise AssertionError(message)

    def waiting(self) -> list[Told]:
        """What has come and was not read yet."""
        self._socket.settimeout(0)
        found: list[Told] = []
        while True:
            try:
                found.append(self._receive())
            except BlockingIOError:
                return found

    def _receive(self) -> Told:
        data, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(CREDENTIALS.size))
        pid = next((CREDENTIALS.unpack(each[2])[0] for each in ancillary), os.getpid())
        pairs = (line.partition("=") for line in data.decode().splitlines())
        told = Told(pid, {name: value for name, _, value in pairs})
        self.heard.append(told)
        return told
