"""From a request to its answer: choose a route, try it, choose again without whoever failed.

    wait until the model is ready (inside the deadline)
    repeat: choose a route among ready replicas on routable nodes
            one slice on a node whose workers were handed over: direct, through shared memory
            else: relay, through the agents
            failed, retryable, time left, attempts left: again without the blamed nodes

The inputs stay with the request until it ends, so a retry re-runs all of it. Routes with random
operators are not retried unless asked: a second run would be a second answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from din.domain.deployment import Route
from din.domain.node import NodeId
from din.domain.request import AttemptRecord, SliceTiming, TraceStep
from din.domain.tensor import TensorMeta
from din.errors import (
    BadTensor,
    Busy,
    DeadlineExceeded,
    DinError,
    ExecutionFailed,
    Unavailable,
    WorkerLost,
)
from din.flow.retry import Outcome as RetryQuestion
from din.flow.retry import decide_retry
from din.gateway.requests.attempt import Attempt
from din.gateway.requests.direct_attempt import DirectAttempt
from din.gateway.requests.failure import AttemptEnded, AttemptFailed
from din.gateway.requests.losses import Losses
from din.gateway.requests.request_tools import (
    BUSY_PAUSE_S,
    RECORDS_KEPT_MAX,
    RETRY_LIMITS,
    SILENCE_COLD_MS,
    SILENCE_FLOOR_MS,
    SLICE_FAILURES_MAX,
    TIMEOUT_MS_DEFAULT,
    TIMEOUT_MS_MAX,
    RequestTools,
)
from din.gateway.requests.returned import with_returned
from din.gateway.routes.choosing import choose_now
from din.gateway.routes.serving import LiveReplica, Serving
from din.gateway.routes.shape import RouteShape
from din.gateway.service import InferenceAnswer, InferenceCall
from din.gateway.telemetry.traces import Outcome


class Request:
    """One request on its way, until `run` or an `Express` has ended it."""

    def __init__(
        self, tools: RequestTools, serving: Serving, call: InferenceCall, started_ms: float
    ) -> None:
        self.tools = tools
        self.serving = serving
        self.call = call
        self.shape: RouteShape = serving.shape(is_adapted=call.is_adapted)
        self.started_ms = serving.asked_ms = started_ms
        timeout_ms = call.timeout_ms if call.timeout_ms is not None else TIMEOUT_MS_DEFAULT
        self.deadline_ms = started_ms + min(max(timeout_ms, 1), TIMEOUT_MS_MAX)
        self._number = tools.next_request_id()
        self._public_id = call.request_id or f"req-{tools.random.getrandbits(32):08x}"
        self._attempt_started_ms = started_ms
        self._records: tuple[AttemptRecord, ...] = ()
        self._avoided: set[str] = set()
        self._blamed: set[NodeId] = set()
        """Answered with a failure. It counts against them once somebody has answered this request:
        until then the inputs may be what no node can compute."""
        self._attempts = 0
        self._failures = 0
        self._slice_failures = 0
        self._losses: Losses | None = None

    async def run(self, failed: AttemptFailed | None = None) -> InferenceAnswer:
        """Attempts until one completes; the first may have failed already. Raises DinError."""
        self._check_outputs()
        status, error = "failed", ""
        try:
            while True:
                if failed is not None:
                    await self._after_failure(failed)
                replicas = await self._choose()
                self.begin_attempt(replicas)
                try:
                    answer = await self._attempt(replicas)
                except AttemptEnded as ended:
                    failed = AttemptFailed(replicas, ended)
                else:
                    status = "completed"
                    return answer
                finally:
                    self.end_attempt(replicas)
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        except DinError as fault:
            error = f"{fault.code}: {fault.message}"
            raise
        finally:
            if status != "completed":
                self.keep_failure(status, error)

    def remaining_ms(self) -> int:
        """Whole milliseconds left until the deadline."""
        return int(self.deadline_ms - self.tools.clock())

    def unknown_outputs(self) -> list[str]:
        """Wanted outputs that the model does not have."""
        return [name for name in self.call.outputs if name not in self.shape.answered]

    def awaited_outputs(self) -> tuple[str, ...]:
        """Wanted outputs that slices make; all of them when none is wanted, for a slice that runs
        must say something."""
        returned = self.shape.returned
        return tuple(name for name in self.call.outputs if name not in returned)

    def _check_outputs(self) -> None:
        unknown = self.unknown_outputs()
        if unknown:
            raise BadTensor(
                f"model {self.call.model_id!r} has no output {unknown[0]!r}",
                hint=f"its outputs are {', '.join(self.shape.answered)}",
            )

    # Choosing.

    async def _choose(self) -> dict[int, LiveReplica]:
        was_idle = False
        while True:
            replicas = self.choose_now()
            if replicas is not None:
                if was_idle:
                    self._record((), "waited: the model was idle and was loaded again")
                return replicas
            left_ms = self.remaining_ms()
            if left_ms <= 0 or self.serving.deployment.state == "failed":
                raise self._never_ready()
            self.serving.want()
            was_idle = was_idle or self.serving.is_returning
            await self.serving.wait_for_change(left_ms / 1000)
            self._avoided.clear()

    def choose_now(self) -> dict[int, LiveReplica] | None:
        """A replica for each slice; None when one has none now."""
        tools = self.tools
        started_ms = tools.clock()
        replicas = choose_now(
            self.serving, self.shape, tools.health_of, tools.random, started_ms, self._avoided
        )
        if replicas is not None:
            tools.metrics.observe_scheduling((tools.clock() - started_ms) / 1000)
        return replicas

    def _never_ready(self) -> DinError:
        deployment = self.serving.deployment
        if self._records and deployment.state != "failed":
            last = self._records[-1]
            return DeadlineExceeded(
                f"no answer within {self.deadline_ms - self.started_ms:.0f} ms after "
                f"{self._attempts} attempts; the last: {last.outcome}",
                hint="see `din node list` for the nodes and `din model inspect` for the replicas",
            )
        missing = [
            deployment.partition.slices[index].name
            for index in self.shape.slices
            if not self.serving.replicas(index)
        ]
        return Unavailable(
            f"model {self.call.model_id!r} is {deployment.state}, not ready: no ready replica of "
            f"slice {', '.join(missing) or '(all suspect)'}"
            + (f" ({deployment.reason})" if deployment.reason else ""),
            hint=f"see `din model inspect {self.call.model_id}`",
        )

    # Trying.

    def begin_attempt(self, replicas: dict[int, LiveReplica]) -> None:
        """Count it; `end_attempt` follows."""
        self._attempts += 1
        self._attempt_started_ms = self.tools.clock()
        for replica in replicas.values():
            replica.inflight += 1

    def end_attempt(self, replicas: dict[int, LiveReplica]) -> None:
        """It is over, however."""
        for replica in replicas.values():
            replica.inflight -= 1

    async def _attempt(self, replicas: dict[int, LiveReplica]) -> InferenceAnswer:
        direct = DirectAttempt.of(self, replicas)
        if direct is None:
            return await self._relayed(replicas)
        try:
            result = await self.tools.direct.run(direct.order, direct.patience_ms)
        except TimeoutError:
            raise direct.silent() from None
        answer = direct.answer(result)
        direct.learn()
        return answer

    def has_other(self, index: int, node_id: NodeId) -> bool:
        """Whether somebody else may be asked for a slice, who has not failed this request yet."""
        ready = self.serving.replicas(index)
        return len(ready) > 1 and any(
            node != node_id and node not in self._avoided for node in ready
        )

    async def _relayed(self, replicas: dict[int, LiveReplica]) -> InferenceAnswer:
        nodes = [NodeId("")] * self.shape.slice_count
        for index, replica in replicas.items():
            nodes[index] = replica.node_id
        route = Route(self.serving.deployment.epoch, self.shape.is_adapted, tuple(nodes))
        attempt = Attempt(
            self._number,
            self._attempts,
            route,
            self.shape,
            self.awaited_outputs(),
            self.tools.clock(),
        )
        silence_ms = min(self.silence_ms(replicas.values()), float(self.remaining_ms()))
        await self.tools.relay.run(
            attempt,
            self.call.metas,
            self.call.chunks,
            self.remaining_ms,
            silence_ms,
            self.has_other,
        )
        outputs = attempt.outputs()
        self.observe(replicas, attempt.timings)
        return self.answer(
            tuple(meta for meta, _ in outputs),
            [view for _, view in outputs],
            _nothing,
            attempt.timings,
            "relay",
        )

    def silence_ms(self, replicas: Iterable[LiveReplica]) -> float:
        """Three times what the slices are expected to take together, each behind its queue."""
        total = 0.0
        for replica in replicas:
            if replica.mean_ms is None:
                return SILENCE_COLD_MS
            total += replica.timeout_ms * (replica.inflight + 1)
        return max(total, SILENCE_FLOOR_MS)

    # After an attempt.

    def observe(self, replicas: dict[int, LiveReplica], timings: dict[int, SliceTiming]) -> None:
        """Learn from measured times."""
        now_ms = self.tools.clock()
        for index, timing in timings.items():
            replica = replicas.get(index)
            if replica is None:
                continue
            replica.observe((timing.queue_us + timing.compute_us) / 1000, now_ms)
            if replica.is_compute_due(now_ms):
                shapes = self.serving.shapes_of(self.shape, self.call.metas)
                replica.observe_compute(shapes, timing.compute_us / 1000, now_ms)
            self.tools.metrics.observe_slice(
                self.call.model_id,
                self.shape.names[index],
                self.tools.name_of(timing.node_id),
                timing.compute_us / 1_000_000,
            )

    def _record(self, node_ids: Iterable[str], outcome: str) -> None:
        record = AttemptRecord(
            attempt=self._attempts,
            nodes=tuple(dict.fromkeys([self.tools.name_of(each) for each in node_ids])),
            outcome=outcome,
            duration_ms=round(self.tools.clock() - self._attempt_started_ms, 3),
        )
        self._records = (*self._records[-(RECORDS_KEPT_MAX - 1) :], record)

    async def _after_failure(self, failed: AttemptFailed) -> None:
        """Return when another attempt may start. Raises the error when none may."""
        replicas, ended = failed
        # Nothing ran: the queue is full, or the slice is between two workers.
        is_waiting = ended.is_busy or (
            type(ended.error) is Unavailable and not self.serving.is_retired
        )
        self._record((each.node_id for each in replicas.values()), ended.error.message)
        for replica in replicas.values():
            if replica.node_id in ended.blamed and not is_waiting:
                replica.observe_failure(self.tools.clock())
        for node_id in ended.blamed:
            if ended.is_node_suspect:
                self.tools.suspect(NodeId(node_id), ended.error.message, self._attempt_started_ms)
            elif not ended.is_busy:
                self._blamed.add(NodeId(node_id))
        self._failures += not is_waiting
        self._slice_failures += (
            isinstance(ended.error, ExecutionFailed) and not ended.is_node_suspect
        )
        poisoned = None
        if isinstance(ended.error, WorkerLost) and not is_waiting:
            if self._losses is None:
                self._losses = Losses(self.tools, self.serving.deployment.epoch)
            poisoned = await self._losses.judge(ended.blamed, self._attempt_started_ms)
        decision = decide_retry(
            RetryQuestion(
                attempts=self._failures,
                remaining_ms=self.remaining_ms(),
                is_retryable=ended.is_retryable and self._slice_failures < SLICE_FAILURES_MAX,
                is_busy=is_waiting,
                is_random=self.shape.is_random,
                is_retry_of_random_allowed=self.call.is_retry_of_random_allowed,
            ),
            RETRY_LIMITS,
        )
        if poisoned is not None:
            raise poisoned
        if not decision.is_allowed:
            if self._losses is not None and isinstance(ended.error, WorkerLost):
                raise await self._losses.explained(ended.error)
            raise ended.error
        self._avoided.update(ended.blamed)
        self.tools.metrics.count_retry()
        if is_waiting:
            pause_s = min(BUSY_PAUSE_S * (1 + self._attempts), self.remaining_ms() / 1000)
            await asyncio.sleep(pause_s * (0.5 + self.tools.random.random()))
            if isinstance(ended.error, Busy) and self.remaining_ms() <= 0:
                raise ended.error

    def answer(
        self,
        metas: tuple[TensorMeta, ...],
        views: list[memoryview],
        release: Callable[[], None],
        timings: dict[int, SliceTiming],
        path: str,
    ) -> InferenceAnswer:
        """The answer, once its trace is kept."""
        manifest = self.serving.deployment.manifest
        for node_id in self._blamed:
            self.tools.slice_failed(node_id)
        self._record([timing.node_id for timing in timings.values()], "completed")
        if self.shape.returned:
            metas, views = with_returned(
                self.shape, self.call, dict(zip(metas, views, strict=True))
            )
        return InferenceAnswer(
            request_id=self._public_id,
            model_id=manifest.model_id,
            version=manifest.version,
            metas=metas,
            views=views,
            steps=self._keep_trace("completed", timings, path, ""),
            release=release,
        )

    def keep_failure(self, status: str, error: str) -> None:
        """The trace of a request without an answer."""
        self._keep_trace(status, {}, "none", error)

    def _keep_trace(
        self, status: str, timings: dict[int, SliceTiming], path: str, error: str
    ) -> tuple[TraceStep, ...]:
        return self.tools.traces.keep(
            Outcome(
                request_id=self._public_id,
                manifest=self.serving.deployment.manifest,
                shape=self.shape,
                status=status,
                duration_ms=self.tools.clock() - self.started_ms,
                timings=timings,
                records=self._records,
                path=path,
                error=error,
                tenant=self.call.tenant,
                isolated_for=self.serving.deployment.tenant,
            )
        )


def _nothing() -> None:
    """Relayed outputs are ordinary memory."""
