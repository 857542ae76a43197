"""Dispatch in virtual time over a real relay, with nodes and direct workers played by fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from random import Random
from typing import Any

from gateway_fakes import (
    GATEWAY_ID,
    MODEL,
    NODE_A,
    NODE_B,
    NODE_C,
    FakeSender,
    Reports,
    Sent,
    VirtualLoop,
    chain_of,
    in_virtual_time,
    outcome_of,
    serving_of,
    timing,
)
from prometheus_client.parser import text_string_to_metric_families

from din.domain.node import NodeId
from din.domain.tensor import TensorMeta
from din.errors import (
    DinError,
    NotFound,
)
from din.gateway.requests.direct import DirectWorkers
from din.gateway.requests.dispatch import Dispatch
from din.gateway.requests.failure import AttemptEnded
from din.gateway.requests.relay import Relay
from din.gateway.requests.request_tools import (
    RequestTools,
)
from din.gateway.routes.serving import Serving
from din.gateway.service import InferenceCall
from din.gateway.telemetry.crashes import CrashBook
from din.gateway.telemetry.metrics import GatewayMetrics
from din.gateway.telemetry.traces import TraceBook
from din.transport.channel import OutputSet
from din.wire.messages import BusyNode, Failed, Result, Run

INPUT = TensorMeta("t0", "UINT8", (4,), 4)
OUTPUT = TensorMeta("t1", "UINT8", (4,), 4)
NAMES = {NODE_A: "node-a", NODE_B: "node-b", NODE_C: "node-c"}
TIMEOUT_MS = 60_000


class FakeDirect:
    """Stands for the handed-over workers: gives what `answers` holds, in order."""

    def __init__(self) -> None:
        self.keys: set[object] = set()
        self.answers: list[OutputSet | AttemptEnded | float] = []

    def has(self, key: object) -> bool:
        return key in self.keys

    def start(self, *given: object) -> None:
        """Everything waits its turn here."""

    async def run(self, *given: object) -> OutputSet:
        answer, patience_ms = self.answers.pop(0), given[-1]
        if isinstance(answer, float):
            assert isinstance(patience_ms, float)
            async with asyncio.timeout(patience_ms / 1000):
                await asyncio.sleep(answer)
        elif isinstance(answer, AttemptEnded):
            raise answer
        else:
            return answer
        raise AssertionError("it was to be cancelled")


class Book:
    """Implements dispatch.Book for one model."""

    def __init__(self, serving: Serving) -> None:
        self.now = serving

    def serving(self, model_id: str, version: str | None) -> Serving:
        if model_id != MODEL:
            raise NotFound(f"no model {model_id!r}")
        return self.now


class Play:
    """Dispatch over a real relay; each node behaves as its entry in `nodes` says."""

    def __init__(self, serving: Serving | None = None, direct: DirectWorkers | None = None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.serving = serving if serving is not None else serving_of(chain_of(1))
        self.nodes: dict[str, Callable[[Run, str], object | None]] = {}
        self.health: dict[str, float] = {NODE_A: 1.0, NODE_B: 1.0, NODE_C: 1.0}
        self.suspected: list[str] = []
        self.keeps_suspects = False
        self.slice_failures: list[str] = []
        self.runs: list[str] = []
        self.sender = FakeSender()
        self.sender.on_sent = self._sent
        self.direct = FakeDirect()
        workers: Any = direct if direct is not None else self.direct
        self.metrics = GatewayMetrics()
        self.metrics.know_models([MODEL])
        self.traces = TraceBook(lambda each: NAMES.get(NodeId(each), each), lambda: "now")
        self.relay = Relay(loop, GATEWAY_ID, self.sender, lambda each: NAMES[NodeId(each)], 10_000)
        self.crashes = CrashBook(loop.clock_ms, lambda: "now")
        self.capacity: dict[NodeId, int] = {}
        tools = RequestTools(
            relay=self.relay,
            direct=workers,
            traces=self.traces,
            metrics=self.metrics,
            clock=loop.clock_ms,
            random=Random(3),
            next_request_id=count(1).__next__,
            name_of=lambda each: NAMES[NodeId(each)],
            health_of=self.health.get,
            capacity_of=lambda each: self.capacity.get(each, 100),
            suspect=self._suspect,
            crashes=self.crashes,
            slice_failed=self.slice_failures.append,
        )
        self.book = Book(self.serving)
        self.reports = Reports()
        self.dispatch = Dispatch(loop, self.book, tools, self.reports)

    def _suspect(self, node_id: NodeId, reason: str, began_ms: float) -> None:
        self.suspected.append(node_id)
        if not self.keeps_suspects:
            self.health.pop(node_id, None)

    def _sent(self, sent: Sent) -> None:
        if isinstance(sent.message, Run):
            self.runs.append(sent.node_id)
            answer = self.nodes.get(sent.node_id, works)(sent.message, sent.node_id)
            if answer is not None:
                self.loop.call_soon(self._arrived, answer)

    def _arrived(self, answer: object) -> None:
        if isinstance(answer, Result):
            self.relay.on_result(answer, self.relay.place_result(answer, 64))
        elif isinstance(answer, Failed):
            self.relay.on_failed(answer)
        elif isinstance(answer, BusyNode):
            self.relay.on_busy(answer)

    def ready(self, *nodes: NodeId, index: int = 0) -> None:
        for node_id in nodes:
            self.serving.add(index, node_id, is_local=False)

    def ask(self, **more: Any) -> asyncio.Task[Any]:
        call = InferenceCall(
            model_id=more.pop("model_id", MODEL),
            metas=(INPUT,),
            chunks=((b"abcd",),),
            is_adapted=False,
            timeout_ms=more.pop("timeout_ms", TIMEOUT_MS),
            **more,
        )
        return self.loop.create_task(self.dispatch.infer(call))

    def counted(self) -> dict[str, float]:
        """Requests by outcome."""
        families = text_string_to_metric_families(self.metrics.text().decode())
        return {
            sample.labels["code"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "din_requests_total"
        }


def works(run: Run, node_id: str) -> Result:
    """Answers at once."""
    timings = (timing(run.slice_index, node_id),)
    return Result(run.request_id, run.attempt, run.slice_index, (OUTPUT,), timings, 0)


def fails(run: Run, node_id: str) -> Failed:
    return Failed(run.request_id, run.attempt, run.slice_index, node_id, "DIN-330", "it broke")


def refuses(run: Run, node_id: str) -> Failed:
    return Failed(
        run.request_id, run.attempt, run.slice_index, node_id, "DIN-110", "bad", is_retryable=False
    )


def is_busy(run: Run, node_id: str) -> BusyNode:
    return BusyNode(run.request_id, run.attempt, run.slice_index, node_id, 8, 10)


def is_silent(run: Run, node_id: str) -> None:
    """Takes the frame and says nothing."""


def run(story: Callable[[Play], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def whole() -> None:
        serving = serving_of(chain_of(1, **more))
        await story(Play(serving))

    in_virtual_time(whole)


async def error_of(task: asyncio.Task[Any]) -> DinError:
    found = await outcome_of(task)
    assert isinstance(found, DinError), found
    return found
