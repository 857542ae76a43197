"""Models, nodes and fakes that the tests of the gateway share, and an event loop in virtual time.

The skip model: photo -> 0 -> heads, skip; heads -> 1 -> scores; skip, scores -> 2 -> boxes; slice 1
also gives `labels` to the gateway.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from din.domain.deployment import Deployment, Epoch, Route
from din.domain.model import GATEWAY, Edge, ModelManifest, Partition, Slice
from din.domain.node import NodeId
from din.domain.request import SliceTiming
from din.domain.tensor import TensorMeta, TensorSpec
from din.flow.timeout import Timeouts
from din.gateway.requests.request_tools import TIMEOUT_LIMITS
from din.gateway.routes.serving import Serving
from din.gateway.routes.shape import RouteShape
from din.wire.messages import AnyMessage

NODE_A = NodeId("00000000000000aa")
NODE_B = NodeId("00000000000000bb")
NODE_C = NodeId("00000000000000cc")
GATEWAY_ID = "00000000000000ff"
EPOCH = Epoch(3, 7)
SLICE_FIRST, SLICE_MIDDLE, SLICE_LAST = 0, 1, 2
MODEL = "faces"

SKIP_EDGES = (
    Edge("photo", GATEWAY, (SLICE_FIRST,)),
    Edge("heads", SLICE_FIRST, (SLICE_MIDDLE,)),
    Edge("skip", SLICE_FIRST, (SLICE_LAST,)),
    Edge("scores", SLICE_MIDDLE, (SLICE_LAST,)),
    Edge("labels", SLICE_MIDDLE, (GATEWAY,)),
    Edge("boxes", SLICE_LAST, (GATEWAY,)),
)
PHOTO = TensorMeta("photo", "UINT8", (16,), 16)
LABELS = TensorMeta("labels", "FP32", (4,), 16)
BOXES = TensorMeta("boxes", "FP32", (1, 2), 8)
PHOTO_BYTES = bytes(range(16))

Answer = TypeVar("Answer")


class VirtualSelector(selectors.DefaultSelector):
    """Waits for nothing but threads: when only a timer is left, time jumps to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.threads or timeout is None:
            return super().select(5.0)
        self.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while there is work."""

    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now_s

    def clock_ms(self) -> float:
        """Monotonic milliseconds."""
        return self.time() * 1000

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self.virtual.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self.virtual.threads -= 1


def in_virtual_time(story: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run a story to its end on a loop of its own."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story())
    finally:
        finish(loop)


def finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left and close the loop."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()


async def settle(turns: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Sent:
    """One frame that the fake sender took."""

    def __init__(
        self, node_id: str, message: AnyMessage, body: Sequence[memoryview | bytes]
    ) -> None:
        self.node_id = node_id
        self.message = message
        self.body = b"".join(bytes(each) for each in body)


class FakeSender:
    """Implements relay.Sender: keeps what was sent, refuses for nodes that are closed or full."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.closed: set[str] = set()
        self.full: set[str] = set()
        self.error: Exception | None = None
        self.on_sent: Callable[[Sent], None] = lambda sent: None

    def send(
        self, node_id: str, message: AnyMessage, body: Sequence[memoryview | bytes] = ()
    ) -> bool:
        if self.error is not None and body:
            raise self.error
        if node_id in self.closed or node_id in self.full:
            return False
        sent = Sent(node_id, message, body)
        self.sent.append(sent)
        self.on_sent(sent)
        return True

    def is_open(self, node_id: str) -> bool:
        return node_id not in self.closed

    def of(self, kind: type[AnyMessage]) -> list[Sent]:
        """What was sent of one kind."""
        return [each for each in self.sent if isinstance(each.message, kind)]

    def take(self, kind: type[AnyMessage]) -> list[Sent]:
        """The same, and forget everything."""
        found = self.of(kind)
        self.sent.clear()
        return found


class Reports:
    """Keeps what was reported."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def __call__(self, text: str, **facts: object) -> None:
        self.lines.append((text, facts))

    def of(self, text: str) -> list[dict[str, object]]:
        return [facts for line, facts in self.lines if line == text]


def spec(name: str) -> TensorSpec:
    return TensorSpec(name, "FP32", ("n", 4))


def part_of(index: int, edges: Sequence[Edge], memory_mib: int = 100, **more: Any) -> Slice:
    """A slice that reads and makes what the edges say."""
    return Slice(
        index=index,
        slice_id=more.pop("slice_id", f"{index:064x}"),
        name=more.pop("name", f"part{index}"),
        inputs=tuple(spec(edge.tensor) for edge in edges if index in edge.consumers),
        outputs=tuple(spec(edge.tensor) for edge in edges if edge.producer == index),
        memory_mib=memory_mib,
        **more,
    )


def chain_of(count: int, memory_mib: int = 100, **more: Any) -> Partition:
    """`count` slices one after the other."""
    edges = [Edge("t0", GATEWAY, (0,))]
    edges += [Edge(f"t{i + 1}", i, (i + 1,)) for i in range(count - 1)]
    edges.append(Edge(f"t{count}", count - 1, (GATEWAY,)))
    return Partition(
        slices=tuple(part_of(i, edges, memory_mib, **more) for i in range(count)),
        edges=tuple(edges),
    )


def skip_partition(**more: Any) -> Partition:
    return Partition(
        slices=tuple(part_of(i, SKIP_EDGES, **more) for i in range(3)), edges=SKIP_EDGES
    )


def manifest_of(partition: Partition, model_id: str = MODEL, **more: Any) -> ModelManifest:
    given = [edge.tensor for edge in partition.edges if edge.producer == GATEWAY]
    taken = [edge.tensor for edge in partition.edges if GATEWAY in edge.consumers]
    return ModelManifest(
        model_id=model_id,
        version=more.pop("version", "1"),
        source_sha256="0" * 64,
        inputs=tuple(map(spec, given)),
        outputs=tuple(map(spec, taken)),
        **more,
    )


def serving_of(partition: Partition, epoch: Epoch = EPOCH, **more: Any) -> Serving:
    return Serving(
        Deployment(epoch=epoch, manifest=manifest_of(partition, **more), partition=partition),
        Timeouts(TIMEOUT_LIMITS),
    )


SKIP_SHAPE = RouteShape(skip_partition(), is_adapted=False)
SKIP_ROUTE = Route(EPOCH, False, (NODE_A, NODE_B, NODE_C))


def timing(index: int, node_id: str, compute_us: int = 1_000) -> SliceTiming:
    return SliceTiming(index, node_id, 0, 100, compute_us)


async def outcome_of(work: Awaitable[Any]) -> Any:
    """The exception that it raised, or what it returned."""
    try:
        return await work
    except Exception as error:
        return error
