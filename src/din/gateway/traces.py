"""The last requests and where their time went: an audit voucher of each decision, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from din.domain.model import Edge
from din.domain.request import AttemptRecord, SliceTiming, Trace
from din.errors import Conflict, NotFound
from din.gateway.serving import Serving
from din.gateway.shape import RouteShape
from din.observability.waterfall import Names, build_spans, build_steps

TRACES_KEPT_MAX: Final = 1_000


class Outcome(Struct, kw_only=True):
    """What dispatch knows of a finished request."""

    request_id: str
    serving: Serving
    shape: RouteShape
    status: str
    duration_ms: float
    timings: Mapping[int, SliceTiming]
    records: tuple[AttemptRecord, ...]
    path: str
    error: str = ""


class _Kept(NamedTuple):
    """A trace and what its spans are drawn from."""

    trace: Trace
    timings: tuple[SliceTiming, ...]
    edges: Sequence[Edge]
    duration_ms: float
    names: Names

    def drawn(self) -> Trace:
        """The whole trace."""
        spans = build_spans(self.timings, self.edges, self.duration_ms, self.names)
        return replace(self.trace, spans=spans)


class TraceBook:
    """Newest traces by request id."""

    def __init__(self, name_of: Callable[[str], str], wall_clock_iso: Callable[[], str]) -> None:
        self._name_of = name_of
        self._wall_clock_iso = wall_clock_iso
        self._traces: OrderedDict[str, _Kept] = OrderedDict()

    def keep(self, outcome: Outcome) -> Trace:
        """Turn an outcome into a trace and remember it; the oldest is forgotten.

        The trace that comes back has no spans: they are drawn when somebody looks, which is rare,
        and cost as much as the rest of a small request.
        """
        deployment = outcome.serving.deployment
        # In the order in which slices run, adapters included.
        order = outcome.shape.slices
        timings = tuple([outcome.timings[index] for index in order if index in outcome.timings])
        names = Names(
            {index: deployment.partition.slices[index].name for index in outcome.timings},
            {timing.node_id: self._name_of(timing.node_id) for timing in timings},
        )
        trace = Trace(
            request_id=outcome.request_id,
            model_id=deployment.manifest.model_id,
            version=deployment.manifest.version,
            started_at=self._wall_clock_iso(),
            status=outcome.status,
            duration_ms=round(outcome.duration_ms, 3),
            execution_trace=build_steps(timings, names),
            spans=(),
            attempts=outcome.records,
            path=outcome.path,
            error=outcome.error,
        )
        self._traces[trace.request_id] = _Kept(
            trace, timings, outcome.shape.edges, outcome.duration_ms, names
        )
        self._traces.move_to_end(trace.request_id)
        if len(self._traces) > TRACES_KEPT_MAX:
            self._traces.popitem(last=False)
        return trace

    def newest(self, limit: int) -> tuple[Trace, ...]:
        """Up to `limit` traces, newest first."""
        kept = islice(reversed(self._traces.values()), max(limit, 0))
        return tuple(each.drawn() for each in kept)

    def find(self, request_id: str) -> Trace:
        """By id, by unique prefix, or `last`. Raises NotFound or Conflict."""
        exact = self._traces.get(request_id)
        if exact is not None:
            return exact.drawn()
        if request_id == "last" and self._traces:
            return next(reversed(self._traces.values())).drawn()
        matches = [key for key in self._traces if key.startswith(request_id)]
        if len(matches) > 1:
            raise Conflict(
                f"{request_id!r} is the beginning of {len(matches)} request ids",
                hint=f"for example {matches[0]} and {matches[1]}: give more of it",
            )
        if not matches:
            raise NotFound(
                f"no trace of request {request_id!r}",
                hint=f"the last {TRACES_KEPT_MAX} are kept; see `din trace list`",
            )
        return self._traces[matches[0]].drawn()
