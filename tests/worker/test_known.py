"""Orders that say the same are looked at once, and still compute what lies in the arena now."""

import mmap
import socket
from collections.abc import Generator, Mapping, Sequence

import msgspec
import numpy as np
import pytest

from din.backends.contract import Array
from din.domain.tensor import TensorMeta, TensorSpec
from din.wire.worker import ArenaLayout, Compute, Computed, ComputeFailed, Placed, WorkerAnswer
from din.worker.feed import Feed
from din.worker.known import KNOWN_MAX, Known, KnownOrders
from din.worker.serve import Server
from din.worker.watchdog import Watchdog

INPUT_BYTES = 4096
FLOATS = 4
META = TensorMeta("x", "FP32", (FLOATS,), 4 * FLOATS)


class Doubler:
    """Twice the input, written where it was asked to be."""

    inputs = (TensorSpec("x", "FP32", ("n",)),)
    outputs = (TensorSpec("y", "FP32", ("n",)),)

    def __init__(self) -> None:
        self.given: list[Mapping[str, Array]] = []

    def run(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        self.given.append(inputs)
        np.multiply(inputs["x"], 2, out=targets["y"])
        return dict(targets)

    def stop(self) -> None:
        """Runs end at once."""

    def warm(self) -> bool:
        return True


class Bench:
    """A server and its feeder's end."""

    def __init__(self) -> None:
        self.far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.memory = mmap.mmap(-1, 2 * INPUT_BYTES)
        self.feed = Feed(near, self.memory, ArenaLayout(2 * INPUT_BYTES, INPUT_BYTES))
        self.session = Doubler()
        watchdog = Watchdog([self.feed], self.session.stop)
        self.server = Server(self.session, [self.feed], watchdog)
        self._ticket = 0

    def ask(self, offset: int, numbers: Sequence[float]) -> WorkerAnswer:
        """One order with these numbers at this place."""
        self._ticket += 1
        data = np.array(numbers, np.float32).tobytes()
        if 0 <= offset <= INPUT_BYTES - len(data):
            self.memory[offset : offset + len(data)] = data
        released = (self._ticket - 1,)
        order = Compute(self._ticket, (Placed(META, offset),), (), 10_000, 0, released)
        self.far.send(msgspec.msgpack.encode(order))
        message = self.feed.receive()
        assert message is not None
        self.server._handle(self.feed, message)  # pyright: ignore[reportPrivateUsage]
        return msgspec.msgpack.decode(self.far.recv(65536), type=WorkerAnswer)

    def doubled(self, offset: int, numbers: Sequence[float]) -> list[float]:
        """What comes of it."""
        answer = self.ask(offset, numbers)
        assert isinstance(answer, Computed)
        (placed,) = answer.outputs
        end = placed.offset + placed.meta.nbytes
        found = np.frombuffer(self.memory[placed.offset : end], np.float32)
        return [float(each) for each in found]


@pytest.fixture
def bench() -> Generator[Bench]:
    bench = Bench()
    yield bench
    bench.far.close()


def test_an_order_that_comes_again_computes_what_lies_there_now(bench: Bench) -> None:
    assert bench.doubled(0, [1, 2, 3, 4]) == [2, 4, 6, 8]
    assert bench.doubled(0, [5, 6, 7, 8]) == [10, 12, 14, 16]
    first, second = bench.session.given
    assert first is second, "nothing was made anew"


def test_another_place_is_another_order(bench: Bench) -> None:
    assert bench.doubled(0, [1, 1, 1, 1]) == [2, 2, 2, 2]
    assert bench.doubled(64, [3, 3, 3, 3]) == [6, 6, 6, 6]
    first, second = bench.session.given
    assert first is not second


@pytest.mark.parametrize("offset", [-64, 8, INPUT_BYTES - 8, INPUT_BYTES])
def test_a_wrong_place_is_refused_after_a_right_one(bench: Bench, offset: int) -> None:
    bench.doubled(0, [1, 2, 3, 4])
    answer = bench.ask(offset, [1, 2, 3, 4])
    assert isinstance(answer, ComputeFailed)
    assert len(bench.session.given) == 1


def _order(offset: int, meta: TensorMeta = META) -> Compute:
    return Compute(1, (Placed(meta, offset),), (), 1000)


def test_so_many_orders_are_kept_and_no_more(bench: Bench) -> None:
    orders = KnownOrders()
    for number in range(KNOWN_MAX + 1):
        orders.keep(bench.feed, _order(64 * number), Known({}, (), ()))
    assert orders.find(bench.feed, _order(0)) is None
    assert orders.find(bench.feed, _order(64)) is not None


@pytest.mark.parametrize(
    "meta", [TensorMeta("x", "BYTES", (1,), 8), TensorMeta("x", "FP32", (64,), 9, "zstd")]
)
def test_what_depends_on_contents_is_not_kept(bench: Bench, meta: TensorMeta) -> None:
    orders = KnownOrders()
    orders.keep(bench.feed, _order(0, meta), Known({}, (), ()))
    assert orders.find(bench.feed, _order(0, meta)) is None


def test_orders_of_a_feed_that_has_gone_are_forgotten(bench: Bench) -> None:
    orders = KnownOrders()
    orders.keep(bench.feed, _order(0), Known({}, (), ()))
    bench.feed.close()
    orders.drop_closed()
    assert orders.find(bench.feed, _order(0)) is None


def test_so_many_places_of_outputs_are_kept(bench: Bench) -> None:
    known = Known({}, ("y",), (TensorMeta("y", "FP32", (FLOATS,), 4 * FLOATS),))
    first = known.laid(bench.feed.memory, (INPUT_BYTES,))
    assert known.laid(bench.feed.memory, (INPUT_BYTES,)) is first
    for number in range(1, KNOWN_MAX + 1):
        known.laid(bench.feed.memory, (INPUT_BYTES + 16 * number,))
    assert known.laid(bench.feed.memory, (INPUT_BYTES,)) is not first
