"""What a program tells the service manager that started it: sd_notify(3), by datagrams of our own.

The socket's path is in NOTIFY_SOCKET (`@` begins an abstract one), and how long the manager waits
for a sign of life in WATCHDOG_USEC. Both are taken out of the environment, so that no child speaks
in our name. Without a manager nothing is sent and nothing is kept alive.

The sign of life is given by the event loop itself, at half of the time: a loop that stands still
gives none, and the manager ends and restarts the program.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import Final

SEND_S_MAX: Final = 0.5
"""The manager reads at once, as a rule; a full socket must not hold the loop for longer."""
STATUS_CHARACTERS_MAX: Final = 200
TICK_S: Final = 10.0
"""Between two looks at the status where no sign of life is asked for."""


class ServiceManager:
    """The manager, if there is one. Nothing here raises: its absence is no reason to stop."""

    def __init__(self, environment: MutableMapping[str, str], pid: int | None = None) -> None:
        """Takes its variables out of the environment. `pid` is ours."""
        path = environment.pop("NOTIFY_SOCKET", "")
        own = str(os.getpid() if pid is None else pid)
        microseconds = environment.pop("WATCHDOG_USEC", "")
        is_ours = environment.pop("WATCHDOG_PID", own) == own
        self._address = "\0" + path[1:] if path.startswith("@") else path
        is_known = bool(path) and is_ours and microseconds.isascii() and microseconds.isdecimal()
        self.watchdog_s = int(microseconds) / 1_000_000 if is_known else 0.0
        """It ends us when it hears nothing for so long; 0 = it does not."""
        self._status = ""
        self._owes_ready = False
        self._is_stopping = False

    @property
    def is_there(self) -> bool:
        """Whether a manager wants to be told."""
        return bool(self._address)

    def ready(self, status: str) -> None:
        """We serve. Also ends a reload."""
        self._owes_ready = not self._tell("READY=1", self._said(status))

    def reloading(self) -> None:
        """Settings are read again; `ready` comes when that is done."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self, status: str = "stopping") -> None:
        """We begin to end; signs of life go on, the status stays."""
        self._is_stopping, self._owes_ready = True, False
        self._tell("STOPPING=1", self._said(status))

    def status(self, text: str) -> None:
        """One line for `systemctl status`; the same one is not sent twice."""
        if self._said(text) != self._status and not self._is_stopping:
            self._tell(self._said(text))

    async def keep_told(self, status: Callable[[], str]) -> None:
        """For ever; the caller cancels it: signs of life, and the status when it changes."""
        if not self.is_there:
            return
        pause_s = min(TICK_S, self.watchdog_s / 2) if self.watchdog_s else TICK_S
        while True:
            if self._owes_ready:  # else it would end us for not having started
                self.ready(status())
            if self.watchdog_s:
                self._tell("WATCHDOG=1")
            self.status(status())
            await asyncio.sleep(pause_s)

    def _said(self, text: str) -> str:
        line = " ".join(text.split())
        return f"STATUS={line[:STATUS_CHARACTERS_MAX]}"

    def _tell(self, *lines: str) -> bool:
        if not self._address:
            return False
        status = next((each for each in lines if each.startswith("STATUS=")), "")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
                mouth.settimeout(SEND_S_MAX)
                mouth.sendto("\n".join(lines).encode(errors="replace"), self._address)
        except (OSError, ValueError):
            return False  # it is gone, or too busy; a sign of life comes again anyway
        self._status = status or self._status
        return True
