"""Whether a request that failed may be tried again, and if not, why not, in words for the trace."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

ATTEMPTS_MAX: Final = 8
REMAINING_MS_MIN: Final = 5.0
"""With less left a new attempt cannot finish, it only loads nodes."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What is known when an attempt has failed."""

    attempts: int
    """Made so far, this one included."""
    remaining_ms: float
    is_retryable: bool
    """False when another node would fail the same way, as with a wrong tensor."""
    is_busy: bool = False
    """A full queue: nothing ran, so it does not count against the attempts."""
    is_random: bool = False
    """The route has an operator that draws random numbers, and it may have run."""
    is_retry_of_random_allowed: bool = False


class RetryDecision(Struct, frozen=True):
    """Whether to go on, and the reason if not."""

    is_allowed: bool
    reason: str = ""


class RetryLimits(Struct, frozen=True, kw_only=True):
    """How often and how late."""

    attempts_max: int = ATTEMPTS_MAX
    remaining_ms_min: float = REMAINING_MS_MIN


RETRY_LIMITS: Final = RetryLimits()
_ALLOWED: Final = RetryDecision(True)


def decide_retry(outcome: Outcome, limits: RetryLimits = RETRY_LIMITS) -> RetryDecision:
    """Forward passes are pure, so a retry is safe unless an operator is random. Order of the
    reasons: what can never help comes before what ran out."""
    if not outcome.is_retryable:
        return RetryDecision(False, "another node would fail the same way")
    if outcome.is_random and not outcome.is_busy and not outcome.is_retry_of_random_allowed:
        return RetryDecision(
            False, "the model draws random numbers, and a second run would answer differently"
        )
    if outcome.remaining_ms < limits.remaining_ms_min:
        return RetryDecision(False, f"only {max(outcome.remaining_ms, 0):.0f} ms were left")
    if outcome.attempts >= limits.attempts_max and not outcome.is_busy:
        return RetryDecision(False, f"{outcome.attempts} attempts failed, the most allowed")
    return _ALLOWED
