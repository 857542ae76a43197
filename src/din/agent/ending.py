"""From an exit status to words: how a worker ended, whose fault it was, what it held."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from din.domain.crash import Death, DeathKind
from din.system.accelerators import read_text
from din.system.fingerprint import cgroup_folders

# What the worker's own exit codes mean (din.worker.process, din.worker.watchdog).
_EXIT_WORDS: Final = {
    3: " (it could not load its slice)",
    70: " (a fault in the worker itself)",
    75: " (a run did not end when it was stopped)",
}
_EXIT_KINDS: Final[dict[int, DeathKind]] = {0: "left", 3: "left", 75: "stuck"}
_SENT_BY_SOMEBODY: Final = (
    signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPIPE,
)  # fmt: skip


def describe_exit(exit_code: int) -> str:
    """An exit status in words; negative codes are signals, as in `subprocess`."""
    if exit_code >= 0:
        return f"exit code {exit_code}{_EXIT_WORDS.get(exit_code, '')}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unknown"
    return f"killed by signal {-exit_code} ({name})"


def death_of(exit_code: int, memory_mib_peak: int, kills: MemoryKills) -> Death:
    """What an exit status means. Asks the kernel's counter when it was a SIGKILL."""
    words = describe_exit(exit_code)
    if exit_code == -signal.SIGKILL and kills.take():
        return Death("memory", f"{words}: the kernel ended it, memory ran out", memory_mib_peak)
    if exit_code >= 0:
        return Death(_EXIT_KINDS.get(exit_code, "crash"), words, memory_mib_peak)
    kind: DeathKind = "killed" if -exit_code in _SENT_BY_SOMEBODY else "crash"
    return Death(kind, words, memory_mib_peak)


class MemoryKills:
    """The kernel's count of processes that it killed for want of memory, in our group of processes
    where that is counted, else on the whole machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._seen = self._count()

    def take(self) -> bool:
        """Whether there is a kill that was not taken yet; takes it."""
        if self._count() <= self._seen:
            return False
        self._seen += 1
        return True

    def _count(self) -> int:
        for path in self._files():
            found = re.search(r"^oom_kill (\d+)$", read_text(path) or "", re.MULTILINE)
            if found:
                return int(found[1])
        return 0

    def _files(self) -> Iterator[Path]:
        for folder in cgroup_folders(self._root, ""):
            yield folder / "memory.events"
            break  # it counts what is below it as well
        for folder in cgroup_folders(self._root, "memory"):
            yield folder / "memory.oom_control"
        yield self._root / "proc/vmstat"
