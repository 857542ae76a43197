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
from collections.abc import Callable, Iterable, Sequence

from din.domain.deployment import Route
from din.domain.node import NodeId
from din.domain.request import AttemptRecord, SliceTiming, Trace
from din.domain.tensor import TensorMeta
from din.errors import (
    BadTensor,
    Busy,
    CannotPlace,
    DeadlineExceeded,
    DinError,
    ExecutionFailed,
    Unavailable,
)
from din.flow.retry import Outcome as RetryQuestion
from din.flow.retry import decide_retry
from din.gateway.attempt import Attempt
from din.gateway.direct import Key
from din.gateway.failure import AttemptEnded
from din.gateway.request_tools import (
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
from din.gateway.service import Buffer, InferenceAnswer, InferenceCall
from din.gateway.serving import LiveReplica, Serving
from din.gateway.shape import RouteShape
from din.gateway.traces import Outcome
from din.placement.router import Candidate, choose_route


class Request:
    """One request on its way. Lives as long as `run`."""

    def __init__(
        self, tools: RequestTools, serving: Serving, call: InferenceCall, started_ms: float
    ) -> None:
        self._tools = tools
        self._serving = serving
        self._call = call
        self._shape: RouteShape = serving.shape(is_adapted=call.is_adapted)
        self._started_ms = started_ms
        timeout_ms = call.timeout_ms if call.timeout_ms is not None else TIMEOUT_MS_DEFAULT
        self._deadline_ms = started_ms + min(max(timeout_ms, 1), TIMEOUT_MS_MAX)
        self._request_id = tools.next_request_id()
        self._public_id = call.request_id or f"req-{tools.random.getrandbits(32):08x}"
        self._attempt_started_ms = started_ms
        self._records: list[AttemptRecord] = []
        self._avoided: set[str] = set()
        self._attempts = 0
        self._failures = 0
        self._slice_failures = 0

    async def run(self) -> InferenceAnswer:
        """Attempts until one completes. Raises DinError."""
        self._check_outputs()
        status, error = "failed", ""
        try:
            while True:
                replicas = await self._choose()
                self._attempt_started_ms = self._tools.clock()
                try:
                    answer = await self._attempt(replicas)
                except AttemptEnded as ended:
                    self._record((r.node_id for r in replicas.values()), ended.error.message)
                    await self._after_failure(replicas, ended)
                else:
                    status = "completed"
                    return answer
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        except DinError as fault:
            error = f"{fault.code}: {fault.message}"
            raise
        finally:
            if status != "completed":
                self._keep_trace(status, {}, "none", error)

    def remaining_ms(self) -> int:
        """Whole milliseconds left until the deadline."""
        return int(self._deadline_ms - self._tools.clock())

    def _check_outputs(self) -> None:
        unknown = [name for name in self._call.outputs if name not in self._shape.outputs]
        if unknown:
            raise BadTensor(
                f"model {self._call.model_id!r} has no output {unknown[0]!r}",
                hint=f"its outputs are {', '.join(self._shape.outputs)}",
            )

    # Choosing.

    async def _choose(self) -> dict[int, LiveReplica]:
        while True:
            started = self._tools.clock()
            replicas = self._choose_now()
            if replicas is not None:
                self._tools.metrics.observe_scheduling((self._tools.clock() - started) / 1000)
                return replicas
            left_ms = self.remaining_ms()
            if left_ms <= 0 or self._serving.deployment.state == "failed":
                raise self._never_ready()
            await self._serving.wait_for_change(left_ms / 1000)
            self._avoided.clear()

    def _choose_now(self) -> dict[int, LiveReplica] | None:
        """A route around the avoided nodes; a slice that nobody else holds goes back to them."""
        offered: list[list[Candidate]] = []
        now_ms = self._tools.clock()
        for index in self._shape.slices:
            candidates = [
                Candidate(
                    node_id,
                    replica.inflight,
                    replica.fresh_mean_ms(now_ms),
                    health,
                    replica.is_local,
                )
                for node_id, replica in self._serving.replicas(index).items()
                if (health := self._tools.health_of(node_id)) is not None
            ]
            if not candidates:
                return None
            others = [each for each in candidates if each.node_id not in self._avoided]
            offered.append(others or candidates)
        try:
            nodes = choose_route(offered, self._tools.random)
        except CannotPlace:
            return None
        return {
            index: self._serving.replicas(index)[node_id]
            for index, node_id in zip(self._shape.slices, nodes, strict=True)
        }

    def _never_ready(self) -> DinError:
        deployment = self._serving.deployment
        if self._records and deployment.state != "failed":
            last = self._records[-1]
            return DeadlineExceeded(
                f"no answer within {self._deadline_ms - self._started_ms:.0f} ms after "
                f"{self._attempts} attempts; the last: {last.outcome}",
                hint="see `din node list` for the nodes and `din model inspect` for the replicas",
            )
        missing = [
            deployment.partition.slices[index].name
            for index in self._shape.slices
            if not self._serving.replicas(index)
        ]
        return Unavailable(
            f"model {self._call.model_id!r} is {deployment.state}, not ready: no ready replica of "
            f"slice {', '.join(missing) or '(all suspect)'}"
            + (f" ({deployment.reason})" if deployment.reason else ""),
            hint=f"see `din model inspect {self._call.model_id}`",
        )

    # Trying.

    async def _attempt(self, replicas: dict[int, LiveReplica]) -> InferenceAnswer:
        self._attempts += 1
        for replica in replicas.values():
            replica.inflight += 1
        try:
            if self._shape.single_slice is not None:
                index = self._shape.single_slice
                node_id = replicas[index].node_id
                key = (self._serving.deployment.epoch, index, node_id)
                if self._tools.direct.has(key):
                    return await self._direct(key, replicas[index])
            return await self._relayed(replicas)
        finally:
            for replica in replicas.values():
                replica.inflight -= 1

    async def _direct(self, key: Key, replica: LiveReplica) -> InferenceAnswer:
        call = self._call
        index = key[1]
        metas, chunks = self._consumed(index)
        started_ms = self._tools.clock()
        patience_ms = self._patience_ms(index, replica)
        try:
            result = await self._tools.direct.run(
                key, metas, chunks, call.outputs, self.remaining_ms, patience_ms
            )
        except TimeoutError:
            raise self._direct_silent(replica, patience_ms) from None
        elapsed_us = int((self._tools.clock() - started_ms) * 1000)
        timing = SliceTiming(
            index,
            replica.node_id,
            0,
            max(elapsed_us - result.compute_us, 0),
            result.compute_us,
            0,
            result.accelerator_percent,
        )
        self._observe({index: replica}, {index: timing})
        return self._answer(result.metas, result.views, result.release, {index: timing}, "direct")

    def _patience_ms(self, index: int, replica: LiveReplica) -> float:
        """Until the deadline, or for as long as it should take where another node may be asked:
        a worker that computes on and one that is stuck look alike."""
        remaining_ms = float(max(self.remaining_ms(), 0))
        if not self._has_other(index, replica.node_id):
            return remaining_ms
        return min(self._silence_ms((replica,)), remaining_ms)

    def _has_other(self, index: int, node_id: NodeId) -> bool:
        """Whether somebody else may be asked for a slice, who has not failed this request yet."""
        ready = self._serving.replicas(index)
        return any(node != node_id and node not in self._avoided for node in ready)

    def _direct_silent(self, replica: LiveReplica, patience_ms: float) -> AttemptEnded:
        node = self._tools.name_of(replica.node_id)
        if self.remaining_ms() <= 0:
            error = DeadlineExceeded(f"the deadline passed while node {node} computed or queued it")
            return AttemptEnded(error, is_retryable=False)
        return AttemptEnded(
            ExecutionFailed(f"node {node} did not answer within {patience_ms:.0f} ms"),
            blamed=(replica.node_id,),
            is_node_suspect=True,
        )

    def _consumed(self, index: int) -> tuple[Sequence[TensorMeta], Sequence[Sequence[Buffer]]]:
        """The inputs without those that the model declares and no operator reads."""
        call, names = self._call, self._shape.inputs[index]
        if len(names) == len(call.metas):
            return call.metas, call.chunks
        kept = [number for number, meta in enumerate(call.metas) if meta.name in names]
        return [call.metas[each] for each in kept], [call.chunks[each] for each in kept]

    async def _relayed(self, replicas: dict[int, LiveReplica]) -> InferenceAnswer:
        nodes = [NodeId("")] * self._shape.slice_count
        for index, replica in replicas.items():
            nodes[index] = replica.node_id
        route = Route(self._serving.deployment.epoch, self._shape.is_adapted, tuple(nodes))
        attempt = Attempt(
            self._request_id,
            self._attempts,
            route,
            self._shape,
            self._call.outputs,
            self._tools.clock(),
        )
        silence_ms = min(self._silence_ms(replicas.values()), float(self.remaining_ms()))
        await self._tools.relay.run(
            attempt,
            self._call.metas,
            self._call.chunks,
            self.remaining_ms,
            silence_ms,
            self._has_other,
        )
        outputs = attempt.outputs()
        self._observe(replicas, attempt.timings)
        return self._answer(
            tuple(meta for meta, _ in outputs),
            [view for _, view in outputs],
            _nothing,
            attempt.timings,
            "relay",
        )

    def _silence_ms(self, replicas: Iterable[LiveReplica]) -> float:
        """3X of what the slices are expected to take together, each behind its queue."""
        total = 0.0
        for replica in replicas:
            if replica.mean_ms is None:
                return SILENCE_COLD_MS
            total += replica.timeout_ms * (replica.inflight + 1)
        return max(total, SILENCE_FLOOR_MS)

    # After an attempt.

    def _observe(self, replicas: dict[int, LiveReplica], timings: dict[int, SliceTiming]) -> None:
        slices = self._serving.deployment.partition.slices
        now_ms = self._tools.clock()
        for index, timing in timings.items():
            replica = replicas.get(index)
            if replica is None:
                continue
            replica.observe((timing.queue_us + timing.compute_us) / 1000, now_ms)
            self._tools.metrics.observe_slice(
                self._call.model_id,
                slices[index].name,
                self._tools.name_of(timing.node_id),
                timing.compute_us / 1_000_000,
            )

    def _record(self, node_ids: Iterable[str], outcome: str) -> None:
        del self._records[: -(RECORDS_KEPT_MAX - 1)]
        self._records.append(
            AttemptRecord(
                attempt=self._attempts,
                nodes=tuple(dict.fromkeys(self._tools.name_of(each) for each in node_ids)),
                outcome=outcome,
                duration_ms=round(self._tools.clock() - self._attempt_started_ms, 3),
            )
        )

    async def _after_failure(self, replicas: dict[int, LiveReplica], ended: AttemptEnded) -> None:
        """Return when another attempt may start. Raises the error when none may."""
        for replica in replicas.values():
            if replica.node_id in ended.blamed and not ended.is_busy:
                replica.observe_failure(self._tools.clock())
        for node_id in ended.blamed:
            if ended.is_node_suspect:
                self._tools.suspect(NodeId(node_id), ended.error.message, self._attempt_started_ms)
            elif not ended.is_busy:
                self._tools.slice_failed(NodeId(node_id))
        self._failures += not ended.is_busy
        self._slice_failures += (
            isinstance(ended.error, ExecutionFailed) and not ended.is_node_suspect
        )
        decision = decide_retry(
            RetryQuestion(
                attempts=self._failures,
                remaining_ms=self.remaining_ms(),
                is_retryable=ended.is_retryable and self._slice_failures < SLICE_FAILURES_MAX,
                is_busy=ended.is_busy,
                is_random=self._shape.is_random,
                is_retry_of_random_allowed=self._call.is_retry_of_random_allowed,
            ),
            RETRY_LIMITS,
        )
        if not decision.is_allowed:
            raise ended.error
        self._avoided.update(ended.blamed)
        self._tools.metrics.count_retry()
        if ended.is_busy:
            pause_s = min(BUSY_PAUSE_S * (1 + self._attempts), self.remaining_ms() / 1000)
            await asyncio.sleep(pause_s * (0.5 + self._tools.random.random()))
            if isinstance(ended.error, Busy) and self.remaining_ms() <= 0:
                raise ended.error

    def _answer(
        self,
        metas: tuple[TensorMeta, ...],
        views: list[memoryview],
        release: Callable[[], None],
        timings: dict[int, SliceTiming],
        path: str,
    ) -> InferenceAnswer:
        manifest = self._serving.deployment.manifest
        self._record((timing.node_id for timing in timings.values()), "completed")
        trace = self._keep_trace("completed", timings, path)
        return InferenceAnswer(
            request_id=self._public_id,
            model_id=manifest.model_id,
            version=manifest.version,
            metas=metas,
            views=views,
            trace=trace,
            release=release,
        )

    def _keep_trace(
        self, status: str, timings: dict[int, SliceTiming], path: str, error: str = ""
    ) -> Trace:
        return self._tools.traces.keep(
            Outcome(
                request_id=self._public_id,
                serving=self._serving,
                shape=self._shape,
                status=status,
                duration_ms=self._tools.clock() - self._started_ms,
                timings=timings,
                records=tuple(self._records),
                path=path,
                error=error,
                tenant=self._call.tenant,
            )
        )


def _nothing() -> None:
    """Relayed outputs are ordinary memory."""
