"""Every limit of the execution core. Tests hit each and one more."""

from __future__ import annotations

from typing import Final

INFLIGHT_PER_WORKER_MAX: Final = 2
"""One runs, one waits in the worker's socket: deeper queues paid nothing."""
QUEUE_MAX: Final = 128
"""Tasks of one slice that gather inputs, wait or run; one more is answered with BUSY."""
MEMORIES_MAX: Final = 4096
"""Attempts remembered after their last task here: cancelled ones and finished ones."""
TASKS_PER_ATTEMPT_MAX: Final = 256
WAYS_MAX: Final = 64
"""Routes through one slice whose edges are kept worked out; one more starts over."""
TIMINGS_MAX: Final = 256
MARKS_PER_MESSAGE_MAX: Final = 256
MARK_DELAY_MS: Final = 20.0
"""Marks of progress wait this long: most slices answer sooner and are never mentioned."""
DRAIN_QUIET_MS: Final = 500.0
"""An unloaded slice goes after this long without work: frames of its epoch may be on the way."""
DRAIN_MS_MAX: Final = 30_000.0
RETRY_AFTER_MS_MIN: Final = 5
RETRY_AFTER_MS_MAX: Final = 2_000
REMAINING_MS_MAX: Final = 3_600_000
"""Longer deadlines and tombstones are cut to this."""
