"""How fast the ways of tensors between slices are, by labels, measurements and pins."""

from __future__ import annotations

from typing import Any

import pytest
from placement_fleet import node, part

from din.domain.model import GATEWAY, Edge
from din.domain.node import NodeId
from din.placement.rates import ASSUMED_RATE, ONE_NODE, Rate, rates_of
from din.placement.ways import SAME_MACHINE, WayFacts

EDGES = (
    Edge("x", GATEWAY, (0,)),
    Edge("t", 0, (1,)),
    Edge("y", 1, (GATEWAY,)),
)
FLEET = (node(1), node(2), node(3))


def between(source: int, target: int, rate: float | None) -> Any:
    pair = (NodeId(f"{source:016x}"), NodeId(f"{target:016x}"))
    return {pair: WayFacts.measured(1.0, rate)}


def rate(fleet=FLEET, known=None, first=None, second=None, wished=None) -> Rate:
    slices = (part(0, **(first or {})), part(1, **(second or {})))
    found = rates_of(slices, EDGES, fleet, known or {}, wished or {})
    assert list(found) == ["t"], "what the gateway makes or reads goes no way between slices"
    return found["t"]


def test_without_labels_and_measurements_a_way_is_assumed():
    assert rate() == ASSUMED_RATE
    assert rate(known=between(1, 2, None)) == ASSUMED_RATE, "only its latency is known"


def test_the_slowest_way_that_a_tensor_may_take_counts():
    known = {**between(1, 2, 50.0), **between(2, 1, 5.0), **between(3, 1, 20.0)}
    assert rate(known=known) == Rate(5.0, "measured from n2 to n1")


def test_a_pin_closes_the_other_ways():
    known = {**between(1, 2, 50.0), **between(2, 1, 5.0), **between(3, 1, 2.0)}
    pinned = {"first": {"nodes": ("n1",)}, "second": {"nodes": ("n2", "n3")}}
    assert rate(known=known, **pinned) == Rate(50.0, "measured from n1 to n2")
    kept_off = {"first": {"not_nodes": ("n3",)}, "second": {"not_nodes": ("n1",)}}
    assert rate(known=known, **kept_off) == Rate(50.0, "measured from n1 to n2")


def test_labels_and_device_types_that_a_slice_asks_for_close_ways_too():
    slow = node(9, labels={"link_mbit": "10", "line": "4"})
    assert rate((*FLEET, slow)).source == "label link_mbit of n9"
    other = {"device_type": "x86_64-cuda"}
    fleet = (*FLEET, node(4, device_type="x86_64-cuda"), slow)
    assert rate(fleet, first=other, second={"nodes": ("n2",)}) == ASSUMED_RATE
    line = {"labels": {"line": "4"}}
    assert rate(fleet, first=other, second=line).mib_per_second == pytest.approx(10e6 / 8 / 2**20)


@pytest.mark.parametrize(
    ("label", "measured", "expected"),
    [("100", 5.0, "measured"), ("10", 50.0, "label"), ("100", None, "label")],
)
def test_of_a_label_and_a_measurement_the_lower_counts(label, measured, expected):
    fleet = (node(1), node(2, labels={"link_mbit": label}))
    assert rate(fleet, between(1, 2, measured)).source.startswith(expected)


@pytest.mark.parametrize("label", ["", "0", "fast", "1e3", "99999999", "-5", "١٠"])
def test_a_label_that_is_no_speed_says_nothing(label):
    assert rate((node(1), node(2, labels={"link_mbit": label}))) == ASSUMED_RATE


def test_a_choice_of_nodes_counts_while_these_are_there():
    fleet = (*FLEET, node(9, labels={"link_mbit": "10"}))
    wished = {0: NodeId(f"{1:016x}"), 1: NodeId(f"{2:016x}")}
    assert rate(fleet, wished=wished) == ASSUMED_RATE
    gone = {0: NodeId("gone"), 1: NodeId("gone")}
    assert rate(fleet, wished=gone).source == "label link_mbit of n9"


def test_within_one_node_nothing_goes_over_a_network():
    slow = (node(1, labels={"link_mbit": "1"}),)
    assert rate(slow) == ONE_NODE
    assert ONE_NODE.mib_per_second == SAME_MACHINE.mib_per_second


def test_where_no_node_may_hold_a_slice_every_node_is_thought_of():
    fleet = (node(1), node(2, labels={"link_mbit": "10"}))
    assert rate(fleet, first={"nodes": ("nobody",)}).source == "label link_mbit of n2"
    assert rate(()) == ASSUMED_RATE
