"""What is reckoned for ways between nodes: measured, inferred or assumed, and that it is said."""

from __future__ import annotations

from random import Random

import pytest
from cut_tables import MIB, chain_table, device
from hypothesis import given, settings
from hypothesis import strategies as st

from din.domain.node import NodeId
from din.placement.partitioning import choose_cuts, prepare
from din.placement.places import CutWishes
from din.placement.ways import (
    ASSUMED,
    HERE,
    SAME_MACHINE,
    UNLIKE_MIN,
    WayFacts,
    Ways,
    way_times,
)

A, B, C = (NodeId(f"id-{name}") for name in "abc")


def random_ways(seed: int) -> Ways:
    random = Random(seed)
    ends = (HERE, A, B, C)
    known = {
        (one, other): random.choice(
            (
                WayFacts.measured(random.uniform(0.01, 50), random.uniform(0.1, 900)),
                WayFacts.measured(random.uniform(0.01, 50), None),
                SAME_MACHINE,
            )
        )
        for one in ends
        for other in ends
        if one != other and random.random() < 0.5
    }
    pairs = [(one, other) for one in (A, B, C) for other in (A, B, C) if one != other]
    return Ways(known=known, undialable=frozenset(each for each in pairs if random.random() < 0.3))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_what_is_told_of_a_way_is_what_was_reckoned_with(seed: int):
    nodes = (A, B, C)
    ways = random_ways(seed)
    times = way_times(nodes, ways)
    for one, source in enumerate(nodes):
        assert times.gateway_hop[one] == ways.between(HERE, source).latency_ms
        for other, target in enumerate(nodes):
            if one == other:
                assert times.hop[one, other] == times.per_byte[one, other] == 0
                continue
            facts = ways.between(source, target)
            assert times.hop[one, other] == pytest.approx(facts.latency_ms)
            rate = 1000 / MIB / facts.mib_per_second
            assert times.per_byte[one, other] == pytest.approx(rate)


def test_a_node_far_from_the_gateway_is_far_from_nodes_that_are_near_to_it():
    far, near = WayFacts.measured(40.0, 1.0), WayFacts.measured(0.2, 110.0)
    facts = Ways(known={(HERE, A): far, (HERE, B): near}).between(A, B)
    assert facts.latency_ms == pytest.approx(39.8)
    assert facts.mib_per_second == 1.0
    assert facts.latency_from == facts.rate_from == "inferred"


def test_nodes_that_are_alike_to_the_gateway_tell_nothing_of_each_other():
    """They may stand side by side, far from the gateway."""
    one, other = WayFacts.measured(40.0, 1.0), WayFacts.measured(40.0, 1.0 * UNLIKE_MIN - 0.01)
    assert Ways(known={(HERE, A): one, (HERE, B): other}).between(A, B) == ASSUMED


def test_what_was_measured_counts_more_than_what_can_be_inferred():
    measured = WayFacts.measured(0.5, 300.0)
    known = {(HERE, A): WayFacts.measured(40.0, 1.0), (HERE, B): SAME_MACHINE, (A, B): measured}
    assert Ways(known=known).between(A, B) == measured
    assert Ways(known=known).between(B, A) == measured


def test_a_relayed_way_is_measured_only_when_both_legs_are():
    legs = {(HERE, A): WayFacts.measured(4.0, 1.0), (HERE, B): WayFacts.measured(1.0, 1.0)}
    facts = Ways(known=legs, undialable=frozenset({(A, B)})).between(A, B)
    assert (facts.latency_ms, facts.mib_per_second) == (5.0, pytest.approx(0.5))
    assert facts.rate_from == "measured"
    half = {(HERE, A): WayFacts.measured(4.0, None), (HERE, B): WayFacts.measured(1.0, 1.0)}
    assert Ways(known=half, undialable=frozenset({(A, B)})).between(A, B).rate_from == "assumed"


# A choice.

BYTES = 512 * 1024
GOOD_AT = {"a": [1, 1, 20.0, 20.0], "b": [20.0, 20.0, 1, 1]}
WIDE = chain_table(BYTES, BYTES, BYTES)


def choose(ways: Ways):
    devices = device("a"), device("b")
    return choose_cuts(prepare(WIDE), devices, CutWishes(), ways, GOOD_AT).choice


def test_a_cut_that_the_assumption_takes_is_left_out_when_the_link_was_measured_slow():
    taken = choose(Ways())
    assert len(taken.slices) == 2
    between = next(each for each in taken.ways if (each.source, each.target) == ("a", "b"))
    assert (between.rate_from, between.latency_from) == ("assumed", "assumed")
    assert between.nbytes == BYTES
    assert between.ms == pytest.approx(1.3)
    left_out = choose(Ways(known={(A, B): WayFacts.measured(2.0, 1.2)}))
    assert left_out.is_split_refused
    between = next(each for each in left_out.ways if (each.source, each.target) == ("a", "b"))
    assert (between.rate_from, between.latency_from) == ("measured", "measured")
    assert between.ms == pytest.approx(2 + 500 / 1.2)
    assert left_out.best_split is not None
    assert left_out.best_split > between.ms


def test_what_goes_in_and_comes_out_is_told_with_its_ways_too():
    told = {(each.source, each.target) for each in choose(Ways()).ways}
    assert told == {("gateway", "a"), ("a", "b"), ("b", "gateway")}
