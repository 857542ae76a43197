"""One number per node for policies: h in 0..1, where 1 is normal.

Errors halve it, a missed beat takes a fifth, and each beat in time gives back a tenth of what is
lacking. So two failures in a row bring it to 0.25, below the 0.3 under which no policy chooses the
node, and after five of them it takes four beats in time to come back over it: a node that fails
fast cannot attract work.
"""

from __future__ import annotations

from typing import Final

ERROR_FACTOR: Final = 0.5
MISSED_BEAT_FACTOR: Final = 0.8
BEAT_SHARE: Final = 0.1
MISSED_BEATS_MAX: Final = 20
"""More missed beats than this change nothing any more."""


def after_error(score: float) -> float:
    """The score after a failed slice or dispatch."""
    return score * ERROR_FACTOR


def after_missed(score: float, missed_beats: int) -> float:
    """The score after so many missed beats."""
    return score * MISSED_BEAT_FACTOR ** min(missed_beats, MISSED_BEATS_MAX)


def after_beat(score: float) -> float:
    """The score after a beat that came in time."""
    return min(1.0, score + (1.0 - score) * BEAT_SHARE)
