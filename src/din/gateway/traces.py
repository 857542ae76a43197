"""The last requests and where their time went: an audit voucher of each decision, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from din.access.scopes import owns
from din.domain.model import Edge
from din.domain.request import AttemptRecord, SliceTiming, Trace
from din.domain.trust import DEFAULT_TENANT, GATEWAY, Caller
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
    tenant: str = DEFAULT_TENANT


class _Kept(NamedTuple):
    """A trace and what its spans are drawn from."""

    trace: Trace
    timings: tuple[SliceTiming, ...]
    edges: Sequence[Edge]
    duration_ms: float
    names: Names
    tenant: str

    def drawn(self) -> Trace:
        """The whole trace."""
        spans = build_spans(self.timings, self.edges, self.duration_ms, self.names)
        return replace(self.trace, spans=spans)


class TraceBook:
    """Newest traces by request id."""

    def __init__(self, name_of: Callable[[str], str], wall_clock_iso: Callable[[], str]) -> None:
        self._name_of = name_of
        self._wall_clock_iso = wall_clock_iso
        self._traces: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        """By tenant and request id: callers choose ids, and must not displace each other's."""

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
        key = (outcome.tenant, trace.request_id)
        self._traces[key] = _Kept(
            trace, timings, outcome.shape.edges, outcome.duration_ms, names, outcome.tenant
        )
        self._traces.move_to_end(key)
        if len(self._traces) > TRACES_KEPT_MAX:
            self._traces.popitem(last=False)
        return trace

    def newest(self, limit: int, caller: Caller = GATEWAY) -> tuple[Trace, ...]:
        """Up to `limit` traces that the caller may see, newest first."""
        kept = (each for each in reversed(self._traces.values()) if owns(caller, each.tenant))
        return tuple(each.drawn() for each in islice(kept, max(limit, 0)))

    def find(self, request_id: str, caller: Caller = GATEWAY) -> Trace:
        """By id, by unique prefix, or `last`. Raises NotFound or Conflict."""
        mine = self._traces.get((caller.tenant, request_id))
        if mine is not None:
            return mine.drawn()
        seen = [each for each in reversed(self._traces.values()) if owns(caller, each.tenant)]
        exact = [each for each in seen if each.trace.request_id == request_id]
        if request_id == "last":
            exact = exact or seen[:1]
        found = exact or [each for each in seen if each.trace.request_id.startswith(request_id)]
        if len(found) > 1 and not exact:
            ids = [each.trace.request_id for each in reversed(found)]
            raise Conflict(
                f"{request_id!r} is the beginning of {len(ids)} request ids",
                hint=f"for example {ids[0]} and {ids[1]}: give more of it",
            )
        if not found:
            raise NotFound(
                f"no trace of request {request_id!r}",
                hint=f"the last {TRACES_KEPT_MAX} are kept; see `din trace list`",
            )
        return found[0].drawn()
