"""What was measured of ways: by the end that receives, said by nodes, forgotten in time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from gateway_fakes import GATEWAY_ID, NODE_A, NODE_B, NODE_C

from din.domain.node import NodeId
from din.gateway.nodes.way_book import AGE_MS_MAX, NODES_MAX, WAYS_MAX, WayBook
from din.placement.ways import ASSUMED, HERE
from din.wire.messages import Measured, MeasuredWay


class Play:
    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.own: list[tuple[NodeId, MeasuredWay]] = []
        self.book = WayBook(GATEWAY_ID, self, lambda: self.now_ms)

    def measured(self) -> Iterable[tuple[NodeId, MeasuredWay]]:
        return self.own

    def says(self, node: NodeId, *ways: tuple[str, float | None, float | None]) -> None:
        self.book.heard(node, Measured(tuple(MeasuredWay(*each) for each in ways)))


def test_the_rate_is_of_the_direction_in_which_tensors_came():
    play = Play()
    play.says(NODE_B, (NODE_A, 4.0, 12.0))
    play.says(NODE_A, (NODE_B, 5.0, 3.0))
    known = play.book.known()
    assert (known[NODE_A, NODE_B].mib_per_second, known[NODE_A, NODE_B].latency_ms) == (12.0, 4.0)
    assert (known[NODE_B, NODE_A].mib_per_second, known[NODE_B, NODE_A].latency_ms) == (3.0, 4.0)
    assert known[NODE_A, NODE_B].rate_from == known[NODE_A, NODE_B].latency_from == "measured"


def test_the_gateway_knows_what_comes_to_it_and_nodes_what_comes_from_it():
    play = Play()
    play.own = [(NODE_A, MeasuredWay(NODE_A, 2.0, 50.0))]
    play.says(NODE_A, (GATEWAY_ID, 3.0, 7.0))
    known = play.book.known()
    assert known[NODE_A, HERE].mib_per_second == 50.0
    assert known[HERE, NODE_A].mib_per_second == 7.0
    assert known[HERE, NODE_A].latency_ms == known[NODE_A, HERE].latency_ms == 2.0


def test_what_is_not_measured_is_assumed_and_says_so():
    play = Play()
    play.says(NODE_B, (NODE_A, 4.0, None))
    facts = play.book.known()[NODE_A, NODE_B]
    assert (facts.latency_ms, facts.latency_from) == (4.0, "measured")
    assert (facts.mib_per_second, facts.rate_from) == (ASSUMED.mib_per_second, "assumed")
    assert play.book.measured_mbit(NODE_A, NODE_B) is None


def test_the_rate_in_mbit_is_of_the_way_else_of_the_opposite_one_else_none():
    play = Play()
    play.says(NODE_B, (NODE_A, 4.0, 11.920928955078125))
    assert play.book.measured_mbit(NODE_A, NODE_B) == pytest.approx(100.0)
    assert play.book.measured_mbit(NODE_B, NODE_A) == pytest.approx(100.0)
    assert play.book.measured_mbit(NODE_A, NODE_C) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, 1e9])
def test_what_cannot_be_is_dropped(value: float):
    play = Play()
    play.says(NODE_B, (NODE_A, value or -2.0, value))
    assert play.book.known() == {}


def test_what_is_not_said_again_is_forgotten_and_what_is_said_replaces_the_older():
    play = Play()
    play.says(NODE_B, (NODE_A, 4.0, 12.0))
    play.says(NODE_B, (NODE_C, 4.0, 12.0))
    assert (NODE_A, NODE_B) not in play.book.known()
    play.now_ms += AGE_MS_MAX + 1
    assert play.book.known() == {}


def test_neither_one_node_nor_many_fill_the_memory():
    play = Play()
    play.says(NODE_A, *((f"{number:016x}", 1.0, None) for number in range(1000, 2000)))
    play.says(NODE_B, (NODE_B, 1.0, None))
    assert len(play.book.known()) == 2 * WAYS_MAX
    for number in range(NODES_MAX + 5):
        play.says(NodeId(f"n{number}"), (GATEWAY_ID, 1.0, None))
    assert len(play.book.known()) == 2 * NODES_MAX
