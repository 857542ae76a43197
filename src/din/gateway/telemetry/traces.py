"""The last requests and where their time went: an audit voucher of each decision, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from din.access.scopes import owns
from din.domain.model import GATEWAY as OUTSIDE
from din.domain.model import ModelManifest
from din.domain.request import AttemptRecord, SliceTiming, Trace, TraceStep
from din.domain.trust import DEFAULT_TENANT, GATEWAY, Caller
from din.errors import Conflict, NotFound
from din.gateway.routes.shape import RouteShape
from din.observability.waterfall import Names, build_spans, build_steps

TRACES_KEPT_MAX: Final = 1_000


class Outcome(Struct, kw_only=True):
    """What dispatch knows of a finished request."""

    request_id: str
    manifest: ModelManifest
    shape: RouteShape
    status: str
    duration_ms: float
    timings: Mapping[int, SliceTiming]
    records: tuple[AttemptRecord, ...]
    path: str
    error: str = ""
    tenant: str = DEFAULT_TENANT
    isolated_for: str = ""


class _Kept(NamedTuple):
    """An outcome as it was noted; the trace is drawn from it when somebody looks, which is rare:
    that costs as much as the rest of a small request."""

    outcome: Outcome
    started_at: str
    timings: tuple[SliceTiming, ...]
    steps: tuple[TraceStep, ...]
    names: Names

    def drawn(self) -> Trace:
        """The whole trace."""
        outcome = self.outcome
        return Trace(
            request_id=outcome.request_id,
            model_id=outcome.manifest.model_id,
            version=outcome.manifest.version,
            started_at=self.started_at,
            status=outcome.status,
            duration_ms=round(outcome.duration_ms, 3),
            execution_trace=self.steps,
            spans=build_spans(self.timings, outcome.shape.edges, outcome.duration_ms, self.names),
            attempts=outcome.records,
            path=outcome.path,
            precision=outcome.manifest.precision,
            isolated_for=outcome.isolated_for,
            error=outcome.error,
        )


class _Joined(NamedTuple):
    """A request whose rows went apart: its trace is that of all shards."""

    outcome: Outcome
    started_at: str
    parts: tuple[tuple[str, _Kept], ...]
    """Label of the rows, and what was kept of them."""
    steps: tuple[TraceStep, ...]

    def drawn(self) -> Trace:
        """The whole trace."""
        traces = [(label, part.drawn()) for label, part in self.parts]
        spans = [
            replace(span, phase=f"{span.phase}{label}")
            for label, trace in traces
            for span in trace.spans
            if span.slice_index != OUTSIDE
        ]
        way_out = [
            each for _, trace in traces for each in trace.spans if each.slice_index == OUTSIDE
        ]
        spans += sorted(way_out, key=lambda span: span.start_ms)[-1:]
        return Trace(
            request_id=self.outcome.request_id,
            model_id=self.outcome.manifest.model_id,
            version=self.outcome.manifest.version,
            started_at=self.started_at,
            status=self.outcome.status,
            duration_ms=round(self.outcome.duration_ms, 3),
            execution_trace=self.steps,
            spans=tuple(sorted(spans, key=lambda span: span.start_ms)),
            attempts=tuple(each for _, trace in traces for each in trace.attempts),
            path="shards",
            precision=self.outcome.manifest.precision,
            isolated_for=self.outcome.isolated_for,
            error=self.outcome.error,
        )


class TraceBook:
    """Newest traces by request id."""

    def __init__(self, name_of: Callable[[str], str], wall_clock_iso: Callable[[], str]) -> None:
        self._name_of = name_of
        self._wall_clock_iso = wall_clock_iso
        self._traces: OrderedDict[tuple[str, str], _Kept | _Joined] = OrderedDict()
        """By tenant and request id: callers choose ids, and must not displace each other's."""

    def keep(self, outcome: Outcome) -> tuple[TraceStep, ...]:
        """Remember an outcome and forget the oldest; its `execution_trace`, in the order in which
        slices run, adapters included."""
        shape, timed = outcome.shape, outcome.timings
        timings = tuple([timed[index] for index in shape.slices if index in timed])
        nodes = {timing.node_id: self._name_of(timing.node_id) for timing in timings}
        names = Names(shape.names, nodes)
        steps = build_steps(timings, names)
        traces, key = self._traces, (outcome.tenant, outcome.request_id)
        if key in traces:
            del traces[key]
        traces[key] = _Kept(outcome, self._wall_clock_iso(), timings, steps, names)
        if len(traces) > TRACES_KEPT_MAX:
            traces.popitem(last=False)
        return steps

    def join(
        self,
        request_id: str,
        labels: Mapping[str, str],
        tenant: str,
        duration_ms: float,
        status: str,
        error: str,
    ) -> tuple[TraceStep, ...]:
        """Make one trace of those of a request's shards (id -> label of its rows); the steps."""
        found = [(label, self._traces.pop((tenant, each), None)) for each, label in labels.items()]
        parts = tuple((label, each) for label, each in found if isinstance(each, _Kept))
        steps = tuple(
            replace(step, phase=f"{step.phase}{label}")
            for label, each in parts
            for step in each.steps
        )
        if parts:
            first = parts[0][1]
            outcome = replace(
                first.outcome,
                request_id=request_id,
                duration_ms=duration_ms,
                status=status,
                error=error,
            )
            self._traces.pop((tenant, request_id), None)
            joined = _Joined(outcome, first.started_at, parts, steps)
            self._traces[tenant, request_id] = joined
        return steps

    def forget(self, request_id: str, tenant: str) -> None:
        """Drop the trace of what nobody asked for."""
        self._traces.pop((tenant, request_id), None)

    def newest(self, limit: int, caller: Caller = GATEWAY) -> tuple[Trace, ...]:
        """Up to `limit` traces that the caller may see, newest first."""
        kept = (
            each for each in reversed(self._traces.values()) if owns(caller, each.outcome.tenant)
        )
        return tuple(each.drawn() for each in islice(kept, max(limit, 0)))

    def find(self, request_id: str, caller: Caller = GATEWAY) -> Trace:
        """By id, by unique prefix, or `last`. Raises NotFound or Conflict."""
        mine = self._traces.get((caller.tenant, request_id))
        if mine is not None:
            return mine.drawn()
        seen = [
            each for each in reversed(self._traces.values()) if owns(caller, each.outcome.tenant)
        ]
        exact = [each for each in seen if each.outcome.request_id == request_id]
        if request_id == "last":
            exact = exact or seen[:1]
        found = exact or [each for each in seen if each.outcome.request_id.startswith(request_id)]
        if len(found) > 1 and not exact:
            ids = [each.outcome.request_id for each in reversed(found)]
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
