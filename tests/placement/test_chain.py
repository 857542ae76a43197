"""The cheapest way through a chain and the fastest pipeline, against trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from din.domain.estimates import SLICE_BASE_MIB
from din.placement import limited
from din.placement.chain import Chain, Way, alone, is_within, memory_of, runs_of
from din.placement.limited import cheapest
from din.placement.pipeline import EXACT_NODES_MAX, alone_in_pipeline, fastest_pipeline
from din.placement.telling import best_split

AMPLE_MIB = 1e9


def make(seed: int, blocks: int, nodes: int, *, tight: bool = False, slices_max: int = 99) -> Chain:
    chance = np.random.default_rng(seed)
    cost = chance.integers(1, 30, (blocks, nodes)).astype(float)
    cost[chance.random((blocks, nodes)) < 0.1] = np.inf
    apart = 1 - np.eye(nodes)
    held = chance.integers(1, 60, blocks).astype(float)
    peak = chance.integers(0, 30, blocks).astype(float)
    room = np.full(nodes, AMPLE_MIB)
    if tight:
        room = chance.integers(SLICE_BASE_MIB, SLICE_BASE_MIB + 160, nodes).astype(float)
    return Chain(
        cost=cost,
        crossing=chance.integers(0, 20, blocks - 1).astype(float),
        hop=chance.integers(1, 9, (nodes, nodes)) * apart,
        per_byte=chance.random((nodes, nodes)) * apart,
        enter=chance.integers(0, 9, nodes).astype(float),
        leave=chance.integers(0, 9, nodes).astype(float),
        held_mib=held,
        peak_mib=peak,
        room_mib=room,
        slices_max=slices_max,
    )


def alike(blocks: int, nodes: int, room_mib: float) -> Chain:
    """Nodes that differ in nothing."""
    apart = 1 - np.eye(nodes)
    return Chain(
        cost=np.full((blocks, nodes), 5.0),
        crossing=np.arange(1.0, blocks),
        hop=apart,
        per_byte=apart,
        enter=np.zeros(nodes),
        leave=np.zeros(nodes),
        held_mib=np.full(blocks, 10.0),
        peak_mib=np.zeros(blocks),
        room_mib=np.full(nodes, room_mib),
        slices_max=99,
    )


def latency(chain: Chain, nodes: tuple[int, ...]) -> float:
    total = chain.enter[nodes[0]] + chain.leave[nodes[-1]]
    total += sum(chain.cost[block, node] for block, node in enumerate(nodes))
    for block, (one, other) in enumerate(pairwise(nodes)):
        total += chain.hop[one, other] + chain.per_byte[one, other] * chain.crossing[block]
    return float(total)


def slowest(chain: Chain, nodes: tuple[int, ...]) -> float:
    worst = max(chain.enter[nodes[0]], chain.leave[nodes[-1]])
    for start, end, node in runs_of(nodes):
        worst = max(worst, sum(chain.cost[start:end, node]))
        if end < chain.blocks:
            worst = max(worst, chain.step(end - 1)[node, nodes[end]])
    if chain.shares is not None:
        for one in range(chain.nodes):
            taken = [
                chain.shares[one, node] * chain.cost[block, node]
                for block, node in enumerate(nodes)
                if chain.shares[one, node]
            ]
            worst = max(worst, sum(taken))
    return float(worst)


def on_machines(seed: int, nodes: int) -> np.ndarray:
    """Which share of its machine each node takes, for nodes on few machines."""
    chance = np.random.default_rng(seed)
    machines = chance.integers(0, 2, nodes)
    taken = chance.choice([0.25, 0.5, 1.0], nodes)
    return np.where(machines[:, None] == machines, taken, 0.0)


def is_pipeline(nodes: tuple[int, ...]) -> bool:
    used = [node for _, _, node in runs_of(nodes)]
    return len(used) == len(set(used))


def every(chain: Chain) -> list[tuple[int, ...]]:
    return list(product(range(chain.nodes), repeat=chain.blocks))


SMALL = {"seed": st.integers(0, 10_000), "blocks": st.integers(1, 5), "nodes": st.integers(1, 4)}


@settings(max_examples=60, deadline=None)
@given(**SMALL)
def test_the_cheapest_way_is_the_cheapest_of_all(seed, blocks, nodes):
    chain = make(seed, blocks, nodes)
    best = min(latency(chain, way) for way in every(chain))
    found = cheapest(chain)
    if np.isinf(best):
        assert found is None
        return
    assert found.is_exact
    assert found.cost == pytest.approx(best)
    assert latency(chain, found.nodes) == pytest.approx(best)


@settings(max_examples=120, deadline=None)
@given(**SMALL, slices_max=st.integers(1, 4))
def test_memory_of_a_node_counts_over_all_its_slices(seed, blocks, nodes, slices_max):
    chain = make(seed, blocks, nodes, tight=True, slices_max=slices_max)
    best = min((latency(chain, way) for way in every(chain) if is_within(chain, way)), default=None)
    found = cheapest(chain)
    if best is None or np.isinf(best):
        assert found is None
        return
    assert found.is_exact
    assert is_within(chain, found.nodes)
    assert found.cost == pytest.approx(best)
    assert latency(chain, found.nodes) == pytest.approx(best)


@settings(max_examples=80, deadline=None)
@given(**SMALL)
def test_alike_nodes_change_nothing_in_what_is_found(seed, blocks, nodes):
    drawn = make(seed, blocks, nodes, tight=True)
    same = alike(blocks, nodes, 0.0)
    chain = replace(
        same,
        cost=drawn.cost[:, :1] + np.zeros(nodes),
        held_mib=drawn.held_mib,
        peak_mib=drawn.peak_mib,
        room_mib=np.where(drawn.room_mib > 100, 120.0, 70.0),
    )
    ways = (latency(chain, way) for way in every(chain) if is_within(chain, way))
    best = min(ways, default=np.inf)
    found = cheapest(chain)
    assert (found is None) == bool(np.isinf(best))
    if found is not None:
        assert found.cost == pytest.approx(best)


@settings(max_examples=80, deadline=None)
@given(**SMALL, tight=st.booleans(), slices_max=st.integers(1, 4))
def test_the_fastest_pipeline_is_the_fastest_of_all(seed, blocks, nodes, tight, slices_max):
    chain = make(seed, blocks, nodes, tight=tight, slices_max=slices_max)
    ways = [way for way in every(chain) if is_pipeline(way) and is_within(chain, way)]
    best = min((slowest(chain, way) for way in ways), default=np.inf)
    found = fastest_pipeline(chain)
    if np.isinf(best):
        assert found is None
        return
    assert found.is_exact
    assert is_pipeline(found.nodes)
    assert is_within(chain, found.nodes)
    assert found.cost == pytest.approx(best)
    assert slowest(chain, found.nodes) == pytest.approx(best)


@settings(max_examples=150, deadline=None)
@given(**SMALL, tight=st.booleans())
def test_a_pipeline_over_shared_processors_is_told_by_what_they_allow(seed, blocks, nodes, tight):
    chain = replace(make(seed, blocks, nodes, tight=tight), shares=on_machines(seed, nodes))
    ways = [way for way in every(chain) if is_pipeline(way) and is_within(chain, way)]
    best = min((slowest(chain, way) for way in ways), default=np.inf)
    found = fastest_pipeline(chain)
    if np.isinf(best):
        assert found is None
        return
    assert is_pipeline(found.nodes)
    assert is_within(chain, found.nodes)
    assert slowest(chain, found.nodes) == pytest.approx(found.cost)
    whole = alone_in_pipeline(chain)
    assert whole is None or found.cost <= whole.cost * (1 + 1e-9)
    if found.is_exact:
        assert found.cost == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), blocks=st.integers(1, 5), nodes=st.integers(1, 8))
def test_alike_nodes_of_one_machine_answer_no_more_often_than_one(seed, blocks, nodes):
    drawn = make(seed, blocks, 1)
    chain = replace(
        alike(blocks, nodes, AMPLE_MIB),
        cost=np.where(np.isfinite(drawn.cost), drawn.cost, 3.0) + np.zeros(nodes),
        shares=np.ones((nodes, nodes)),
    )
    found = fastest_pipeline(chain)
    assert len(runs_of(found.nodes)) == 1
    assert found.cost == pytest.approx(chain.cost[:, 0].sum())
    assert found.is_exact == (nodes <= EXACT_NODES_MAX)


@settings(max_examples=60, deadline=None)
@given(**SMALL, tight=st.booleans())
def test_the_best_node_alone_is_the_best_of_all(seed, blocks, nodes, tight):
    chain = make(seed, blocks, nodes, tight=tight)
    ways = [(node,) * blocks for node in range(nodes) if is_within(chain, (node,) * blocks)]
    for found, judge in ((alone(chain), latency), (alone_in_pipeline(chain), slowest)):
        best = min((judge(chain, way) for way in ways), default=np.inf)
        assert (found is None) == bool(np.isinf(best))
        if found is not None:
            assert found.cost == pytest.approx(best)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_pipeline_over_many_nodes_is_valid_and_says_that_it_is_a_heuristic(seed):
    chain = make(seed, 6, EXACT_NODES_MAX + 4)
    found = fastest_pipeline(chain)
    assert found is not None
    assert not found.is_exact
    assert is_pipeline(found.nodes)
    assert slowest(chain, found.nodes) == pytest.approx(found.cost)
    whole = alone_in_pipeline(chain)
    assert whole is None or found.cost <= whole.cost


def test_alike_nodes_are_tried_once_so_that_many_of_them_stay_exact():
    chain = alike(blocks=12, nodes=12, room_mib=SLICE_BASE_MIB + 30)
    found = cheapest(chain)
    assert found is not None
    assert found.is_exact
    assert len(runs_of(found.nodes)) == 4
    assert max(memory_of(chain, found.nodes).values()) <= SLICE_BASE_MIB + 30


def test_a_search_that_is_cut_short_says_so(monkeypatch):
    monkeypatch.setattr(limited, "LABELS_MAX", 1)
    ways = [cheapest(make(seed, 6, 4, tight=True)) for seed in range(40)]
    assert any(way is not None and not way.is_exact for way in ways)


def test_over_many_nodes_under_limits_the_promising_ones_are_looked_at():
    chain = make(3, 6, 60, tight=True)
    found = cheapest(chain)
    assert found is not None
    assert is_within(chain, found.nodes)
    assert latency(chain, found.nodes) == pytest.approx(found.cost)


@settings(max_examples=60, deadline=None)
@given(**SMALL, is_pipeline=st.booleans(), is_shared=st.booleans())
def test_the_split_that_is_told_of_a_refusal_is_the_best_single_cut(
    seed: int, blocks: int, nodes: int, is_pipeline: bool, is_shared: bool
) -> None:
    chain = make(seed, blocks, nodes)
    if is_shared:
        chain = replace(chain, shares=on_machines(seed, nodes))
    judge = slowest if is_pipeline else latency
    cuts = [
        (one,) * edge + (other,) * (blocks - edge)
        for edge in range(1, blocks)
        for one in range(nodes)
        for other in range(nodes)
        if one != other
    ]
    best = min((judge(chain, way) for way in cuts), default=np.inf)
    whole = Way((0,) * blocks, 1.0, is_exact=True)
    found = best_split(chain, whole, is_pipeline=is_pipeline)
    if found is None:
        assert np.isinf(best)
        return
    assert found.cost == pytest.approx(best)
    assert judge(chain, found.nodes) == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), labels=st.integers(1, 6))
def test_a_search_cut_short_finds_a_valid_way_no_better_than_the_best(
    seed: int, labels: int
) -> None:
    chain = make(seed, 5, 3, tight=True)
    ways = [way for way in product(range(3), repeat=5) if is_within(chain, way)]
    best = min((latency(chain, way) for way in ways), default=np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limited, "LABELS_MAX", labels)
        patch.setattr(limited, "LABELS_FIRST", 1)
        found = cheapest(chain)
    if found is None:
        return
    assert is_within(chain, found.nodes)
    assert latency(chain, found.nodes) == pytest.approx(found.cost)
    assert found.cost >= best - 1e-9
    if found.is_exact:
        assert found.cost == pytest.approx(best)
