"""How a worker ended, and whose fault that was."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

DeathKind = Literal["crash", "memory", "stuck", "killed", "zygote", "left"]
"""crash: a signal or fault of its own. memory: the kernel killed it for want of it. stuck: a run
did not end when it was stopped. killed: somebody sent it a signal. zygote: its parent died.
left: it ended in order."""

OWN_FAULTS: Final[tuple[DeathKind, ...]] = ("crash", "memory", "stuck")
"""What a slice, or its input, did: it may do it again."""


class Death(Struct, frozen=True, array_like=True):
    """The end of one worker."""

    kind: DeathKind
    reason: str
    memory_mib_peak: int = 0
    """The most that it ever held; 0 = not known."""
    running: str = ""
    """Names, types and shapes of the inputs it computed, as far as who fed it knows."""

    @property
    def is_own_fault(self) -> bool:
        """Whether the slice or its input brought it about."""
        return self.kind in OWN_FAULTS

    def story(self) -> str:
        """All of it in one line."""
        peak = f", at most {self.memory_mib_peak} MiB resident" if self.memory_mib_peak else ""
        running = f", while it computed {self.running}" if self.running else ""
        return f"{self.reason}{peak}{running}"


class CrashView(Struct, frozen=True, kw_only=True):
    """One worker that ended by itself or was killed, as people see it."""

    at: str
    """Wall clock of the gateway, ISO 8601."""
    node: str
    slice: str
    """`model/slice`."""
    kind: str
    """One of crash, memory, stuck, killed, zygote."""
    reason: str
    memory_mib_peak: int | None = None
    running: str = ""
    """Inputs that it computed then, as far as who fed it knows."""
