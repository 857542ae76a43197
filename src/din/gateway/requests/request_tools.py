"""What every request of a gateway shares: the rooms it calls, and the limits of its patience."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from din.domain.node import NodeId
from din.flow.retry import RetryLimits
from din.flow.timeout import FACTOR, TimeoutLimits
from din.gateway.requests.direct import DirectWorkers
from din.gateway.requests.relay import Relay
from din.gateway.telemetry.crashes import CrashBook
from din.gateway.telemetry.metrics import GatewayMetrics
from din.gateway.telemetry.traces import TraceBook

ATTEMPTS_MAX: Final = 16
"""Of one request: what kills its workers must not wander through the whole fleet."""
RECORDS_KEPT_MAX: Final = 64
"""Attempts in the trace: a request that waits for busy nodes makes many, the newest are kept."""
SLICE_FAILURES_MAX: Final = 4
"""Attempts that may end because a slice failed while it ran."""
TIMEOUT_MS_DEFAULT: Final = 30_000
TIMEOUT_MS_MAX: Final = 600_000
SILENCE_COLD_MS: Final = 10_000.0
"""How long an attempt may be silent while nothing was measured yet."""
SILENCE_FLOOR_MS: Final = 1_000.0
TIMEOUT_LIMITS: Final = TimeoutLimits(cold_ms=SILENCE_COLD_MS / FACTOR)
"""Three times the sliding mean; a time-out feeds back as a sample, so a slower node recovers."""
RETRY_LIMITS: Final = RetryLimits(attempts_max=ATTEMPTS_MAX)
BUSY_PAUSE_S: Final = 0.005


@dataclass(frozen=True)
class RequestTools:
    """What every request of a gateway shares."""

    relay: Relay
    direct: DirectWorkers
    traces: TraceBook
    metrics: GatewayMetrics
    clock: Callable[[], float]
    """Monotonic milliseconds with fractions."""
    random: Random
    next_request_id: Callable[[], int]
    name_of: Callable[[str], str]
    health_of: Callable[[NodeId], float | None]
    """Health score of a routable node; None when it must not be used now."""
    capacity_of: Callable[[NodeId], int]
    """Share of its speed that a node has now, in percent; 100 where nothing is known."""
    suspect: Callable[[NodeId, str, float], None]
    """Tell membership that a node did not answer, and when the attempt began (as `clock`)."""
    crashes: CrashBook
    """How workers ended."""
    slice_failed: Callable[[NodeId], None]
    """Tell membership that a node failed where it, or another one, could answer."""
