"""How long to wait before trying again: doubling, capped, and jittered so that many do not meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from din.errors import Internal

if TYPE_CHECKING:
    from random import Random

EXPONENT_MAX: Final = 32
"""Beyond this doubling adds nothing but the risk of an overflow."""


class Backoff(Struct, frozen=True, kw_only=True):
    """base_ms * factor^attempt up to cap_ms, of which the last `jitter` part is random."""

    base_ms: float = 10.0
    factor: float = 2.0
    cap_ms: float = 1_000.0
    jitter: float = 0.5
    """0 = none, 1 = anything from 0 to the full delay."""

    def __post_init__(self) -> None:
        if not (0 < self.base_ms <= self.cap_ms and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise Internal(f"back-off makes no sense: {self}")

    def delay_ms(self, attempt: int, random: Random) -> float:
        """Before try number `attempt` + 1, so 0 after the first failure; negative counts as 0."""
        exponent = min(max(attempt, 0), EXPONENT_MAX)
        full = min(self.base_ms * self.factor**exponent, self.cap_ms)
        return full * (1.0 - self.jitter * random.random())
