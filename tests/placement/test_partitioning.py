"""Where to cut and who takes what, and what people are told of it."""

from __future__ import annotations

import numpy as np
import pytest
from cut_tables import MIB, chain_table, device, operator, two_heads, value
from msgspec.structs import replace

from din.domain.cuts import CutTable, SharedWeights
from din.domain.model import GATEWAY
from din.domain.node import NodeId
from din.errors import CannotPlace
from din.placement.boundaries import BLOCKS_MAX, best_cuts, blocks_of, boundaries_of
from din.placement.branches import heads_of
from din.placement.judging import cost_of
from din.placement.partitioning import choose_cuts, prepare
from din.placement.places import CutWishes, RangeRule
from din.placement.speeds import OPERATOR_MS
from din.placement.ways import HERE, WayFacts, Ways

NO_WAYS = Ways()


def choose(table, *devices, ways=NO_WAYS, profiles=None, **wishes):
    blocks = prepare(table, wishes.get("rules", ()))
    return choose_cuts(blocks, devices, CutWishes(**wishes), ways, profiles)


# Boundaries and blocks.


def test_boundaries_say_what_crosses_them():
    table = CutTable(
        source_sha256="c",
        operators=tuple(operator(name) for name in "abcd"),
        values=(
            value("x", GATEWAY, 0, 2),
            value("a", 0, 1, 3, nbytes=10),
            value("b", 1, 2, nbytes=7, is_exact=False),
            value("c", 2, 3, nbytes=5, is_pair=True),
            value("y", 3),
        ),
    )
    found = boundaries_of(table)
    assert found.nbytes.tolist() == [0, 10, 17, 15, 0]
    assert found.width.tolist() == [0, 1, 2, 2, 0]
    assert found.is_exact.tolist() == [True, True, False, True, True]
    assert found.is_open.tolist() == [True, True, True, False, True]


def test_a_boundary_that_something_cannot_cross_is_closed_and_no_block_ends_there():
    table = chain_table(10, 10, 10)
    closed = [each for each in table.values if each.tensor != "t1"]
    closed.append(value("t1", 1, 2, can_travel=False))
    found = boundaries_of(replace(table, values=tuple(closed)))
    assert found.is_open.tolist() == [True, True, False, True, True]
    assert blocks_of(found, wanted=(2,)).edges == (0, 1, 3, 4)


def test_of_many_boundaries_the_light_ones_end_blocks():
    nbytes = [5 if number % 10 == 3 else 100 for number in range(399)]
    blocks = blocks_of(boundaries_of(chain_table(*nbytes)))
    assert len(blocks) <= BLOCKS_MAX
    assert np.mean(blocks.crossing == 5) > 0.8


def test_wanted_boundaries_end_blocks_too():
    blocks = blocks_of(boundaries_of(chain_table(*[100] * 299)), wanted=(77, 78), blocks_max=4)
    assert {77, 78} < set(blocks.edges)


def test_the_best_cuts_have_fewer_bytes_than_all_earlier_ones():
    assert best_cuts(boundaries_of(chain_table(50, 60, 40, 40, 10, 20))) == (1, 3, 5)


def test_weights_that_blocks_share_count_in_each_and_once_in_the_whole():
    table = chain_table(1, 1, weights=MIB, shared=(SharedWeights(10 * MIB, (0, 2)),))
    blocks = prepare(table)
    assert blocks.held_mib.tolist() == [27.5, 2.5, 27.5]
    assert blocks.boundaries.weights.tolist()[-1] == 13 * MIB


# Latency.


def test_alike_nodes_are_no_reason_to_split_and_the_refusal_has_its_numbers():
    choice = choose(chain_table(1000, 1000), device("a"), device("b")).choice
    assert choice.is_split_refused
    assert len(choice.slices) == 1
    assert choice.alone is not None
    assert choice.best_split is not None
    assert choice.best_split > choice.cost == choice.alone.cost
    assert "splitting does not pay" in choice.reason
    assert f"{choice.best_split:.1f} ms" in choice.reason


def test_each_node_gets_what_it_was_measured_to_be_good_at():
    table = chain_table(1000, 1000, 1000)
    profiles = {"left": [1, 1, 90, 90], "right": [90, 90, 1, 1]}
    found = choose(table, device("left"), device("right"), profiles=profiles)
    assert found.assignment == (0, 0, 1, 1)
    assert [each.node for each in found.choice.slices] == ["left", "right"]
    assert found.choice.times_from == "profile"
    assert found.choice.wins_by is not None
    assert found.choice.wins_by > 0.9
    assert found.choice.reason == (
        "2 slices on left, right, 5.0 ms: 97% less time than the best single node, left with "
        "182.7 ms"
    )


def test_times_are_work_over_speed_for_devices_that_were_never_measured():
    choice = choose(chain_table(gflop=2), device("a", gflops=10)).choice
    assert choice.times_from == "flops"
    assert choice.slices[0].compute_ms == pytest.approx(200 + OPERATOR_MS)


def test_a_profile_of_another_graph_is_not_used():
    profiles = {"a": [1.0, 1.0, 1.0]}
    assert choose(chain_table(9), device("a"), profiles=profiles).choice.times_from == "flops"


def test_a_slow_way_to_a_fast_node_keeps_the_large_input_near():
    table = chain_table(4_000_000, 4_000_000, 10, 4_000_000, gflop=0.01)
    wide = CutTable(
        source_sha256="e",
        operators=table.operators,
        values=(value("x", GATEWAY, 0, nbytes=8 * MIB, is_output=False), *table.values[1:]),
    )
    near, far = device("near", gflops=1), device("far", gflops=1000)
    slow = WayFacts(latency_ms=1, mib_per_second=100)
    ways = Ways(known={(HERE, far.node_id): slow, (near.node_id, far.node_id): slow})
    found = choose(wide, near, far, ways=ways)
    assert found.assignment == (0, 0, 0, 1, 1)
    assert [each.node for each in found.choice.slices] == ["near", "far"]


def test_a_way_that_the_gateway_relays_costs_both_legs():
    table = chain_table(1000, gflop=1)
    profiles = {"a": [1, 5.0], "b": [5.0, 1]}
    a, b = device("a"), device("b")
    assert len(choose(table, a, b, profiles=profiles).choice.slices) == 2
    far = WayFacts(latency_ms=2.0)
    ways = Ways(
        known={(HERE, a.node_id): far, (HERE, b.node_id): far},
        undialable=frozenset({(a.node_id, b.node_id)}),
    )
    assert choose(table, a, b, profiles=profiles, ways=ways).choice.is_split_refused


def test_what_no_node_can_hold_is_spread_over_several():
    table = chain_table(900, 10, 900, weights=20 * MIB)
    found = choose(table, device("a", room_mib=160), device("b", room_mib=160))
    assert found.assignment == (0, 0, 1, 1)
    assert found.choice.alone is None
    assert not found.choice.is_split_refused
    assert "no node by itself" in found.choice.reason
    assert all(each.memory_mib <= 160 for each in found.choice.slices)


def test_what_all_nodes_together_cannot_hold_is_refused_with_the_numbers():
    table = chain_table(1, 1, weights=100 * MIB)
    with pytest.raises(CannotPlace) as refused:
        choose(table, device("a", room_mib=300), device("b", room_mib=200))
    assert "it needs 791 MiB" in refused.value.message
    assert "a 300, b 200" in refused.value.message


def test_at_most_so_many_slices_are_made():
    table = chain_table(1, 1, 1, 1, 1, 1)
    profiles = {"a": [1, 9, 1, 9, 1, 9, 1], "b": [9, 1, 9, 1, 9, 1, 9]}
    for most in (1, 2, 3):
        found = choose(table, device("a"), device("b"), profiles=profiles, slices_max=most)
        assert len(found.choice.slices) <= most


# Ranges.


def test_a_sensitive_range_lies_on_trusted_nodes_and_the_rest_where_it_is_fast():
    table = chain_table(10, 10, 10, gflop=10)
    home, cloud = device("home", gflops=1, is_trusted=True), device("cloud", gflops=100)
    rules = (
        RangeRule(first=0, last=0, is_sensitive=True),
        RangeRule(first=3, last=3, is_sensitive=True),
    )
    found = choose(table, home, cloud, rules=rules)
    assert found.assignment == (0, 1, 1, 2)
    assert [each.node for each in found.choice.slices] == ["home", "cloud", "home"]
    assert [each.is_sensitive for each in found.choice.slices] == [True, False, True]


def test_a_range_that_no_node_may_have_is_refused_by_name():
    with pytest.raises(CannotPlace) as refused:
        choose(chain_table(1), device("a"), rules=(RangeRule(first=0, last=0, is_sensitive=True),))
    assert "operators 0 to 0 need a node that is trusted, and none of 1 is" in refused.value.message


def test_pinned_and_forbidden_nodes_are_kept():
    table = chain_table(1, 1, gflop=10)
    slow, fast = device("slow", gflops=1), device("fast", gflops=100)
    pinned = (RangeRule(first=0, last=0, allowed=frozenset({slow.node_id})),)
    assert choose(table, slow, fast, rules=pinned).choice.slices[0].node == "slow"
    barred = (RangeRule(first=0, last=2, forbidden=frozenset({fast.node_id})),)
    assert [e.node for e in choose(table, slow, fast, rules=barred).choice.slices] == ["slow"]


# Other objectives.


def test_a_pipeline_of_alike_nodes_answers_more_often_than_one():
    table = chain_table(10, 10, 10)
    found = choose(table, device("a"), device("b"), objective="throughput")
    assert found.assignment == (0, 0, 1, 1)
    assert found.choice.alone is not None
    assert found.choice.cost == pytest.approx(found.choice.alone.cost / 2, rel=0.01)
    assert found.choice.reason == (
        "2 slices on a, b, 5.0 answers a second: 2.0 times the throughput of the best single "
        "node, a with 2.5 answers a second"
    )


def test_nodes_of_one_machine_are_no_reason_to_split_for_throughput_and_it_says_so():
    devices = [device(name, machine="host") for name in "abc"]
    choice = choose(chain_table(10, 10, 10), *devices, objective="throughput").choice
    assert choice.is_split_refused
    assert choice.alone is not None
    assert choice.best_split is not None
    assert choice.best_split >= choice.cost == choice.alone.cost
    assert choice.notes == (
        "a, b, c are on one machine and share its processor: for throughput their times add up",
    )


def test_one_node_of_each_machine_takes_part_in_a_pipeline():
    devices = [device(name, machine=f"host-{name[0]}") for name in ("a1", "a2", "b1", "b2")]
    choice = choose(chain_table(10, 10, 10), *devices, objective="throughput").choice
    assert choice.alone is not None
    assert choice.cost == pytest.approx(choice.alone.cost / 2, rel=0.01)
    assert {each.node[0] for each in choice.slices} == {"a", "b"}
    assert len(choice.slices) == 2


def test_nodes_that_keep_half_of_their_machine_busy_are_two_at_a_time():
    devices = [device(name, machine="host", processor_share=0.5) for name in "abcd"]
    choice = choose(chain_table(10, 10, 10), *devices, objective="throughput").choice
    assert choice.alone is not None
    assert choice.cost == pytest.approx(choice.alone.cost / 2, rel=0.01)


def test_what_memory_forces_apart_on_one_machine_claims_no_more_than_its_processor_allows():
    table = chain_table(10, 10, weights=20 * MIB)
    devices = [device(name, room_mib=170, machine="host") for name in "ab"]
    choice = choose(table, *devices, objective="throughput").choice
    assert choice.alone is None
    assert len(choice.slices) == 2
    assert choice.cost == pytest.approx(sum(each.compute_ms for each in choice.slices), rel=0.01)


def test_nodes_of_one_machine_are_not_mentioned_where_they_share_nothing():
    few = [device(name, machine="host", processor_share=0.5) for name in "ab"]
    apart = [device("c", machine="host/cpu"), device("d", machine="host/accelerator")]
    choice = choose(chain_table(10, 10), *few, *apart, objective="throughput").choice
    assert choice.notes == ()


def test_energy_is_asked_of_nodes_with_a_meter_alone():
    table = chain_table(1)
    with pytest.raises(CannotPlace) as refused:
        choose(table, device("a"), device("b"), objective="energy")
    assert "none of 2 nodes measures its power" in refused.value.message
    metered = device("thrifty", gflops=5, watts=2.0), device("greedy", gflops=10, watts=50.0)
    choice = choose(table, device("a", gflops=500), *metered, objective="energy").choice
    assert [each.node for each in choice.slices] == ["thrifty"]
    assert choice.unit == "mJ"
    assert choice.nodes_considered == 2


def test_a_split_that_spares_energy_says_so():
    table = chain_table(10, 10)
    profiles = {"a": [1, 1, 90], "b": [90, 90, 1]}
    devices = device("a", watts=2.0), device("b", watts=2.0)
    choice = choose(table, *devices, profiles=profiles, objective="energy").choice
    assert "% less energy than the best single node, a with 185.3 mJ" in choice.reason


def test_the_fewest_bytes_decide_where_memory_forces_a_cut():
    table = chain_table(900, 800, 10, 900, 900, weights=10 * MIB)
    devices = [device(name, room_mib=170) for name in "ab"]
    choice = choose(table, *devices, objective="bytes").choice
    assert choice.cost == 10
    assert choice.unit == "bytes"


# Heads.


@pytest.mark.parametrize("tail", [False, True])
def test_heavy_heads_run_side_by_side(tail):
    found = choose(two_heads(tail=tail), device("a"), device("b"))
    choice = found.choice
    assert "heads side by side" in choice.reason
    assert choice.wins_by is not None
    assert 0.4 < choice.wins_by < 0.5
    left, right = found.assignment[1], found.assignment[2]
    assert found.assignment[:5] == (0, left, right, left, right)
    assert {choice.slices[left].node, choice.slices[right].node} == {"a", "b"}


def test_heads_on_one_machine_take_turns_beyond_its_cores():
    table = two_heads(tail=True)
    crowded = [device(name, machine="host") for name in "ab"]
    assert choose(table, *crowded).choice.is_split_refused
    roomy = [device(name, machine="host", processor_share=0.5) for name in "ab"]
    assert "heads side by side" in choose(table, *roomy).choice.reason
    assert "heads side by side" in choose(table, *crowded, device("c")).choice.reason


def test_light_heads_are_left_together():
    assert choose(two_heads(gflop=0.001), device("a"), device("b")).choice.is_split_refused


def test_a_chain_has_no_heads():
    blocks = prepare(chain_table(1, 1, 1))
    assert heads_of(blocks, np.ones(4)) is None


def test_heads_that_memory_forbids_are_not_taken():
    assert len(choose(two_heads(), device("a"), device("b", room_mib=20)).choice.slices) == 1


# Many nodes.


def test_of_very_many_nodes_the_fastest_and_the_roomiest_are_considered():
    crowd = [device(f"n{number}", gflops=1 + number / 1000) for number in range(150)]
    crowd.append(device("large", gflops=0.1, room_mib=90_000))
    choice = choose(chain_table(1, weights=10_000 * MIB), *crowd).choice
    assert choice.nodes_considered == 100
    assert [each.node for each in choice.slices] == ["large"]
    assert choose(chain_table(1), *crowd).choice.slices[0].node_id == NodeId("id-n149")


# Engines.


def test_a_slice_has_one_engine_and_lies_where_that_is():
    table = chain_table(1, 1, 1)
    rules = (
        RangeRule(first=0, last=1, backend="openvino"),
        RangeRule(first=2, last=3, backend="onnxruntime"),
    )
    both = device("both", backends=("onnxruntime", "openvino"))
    found = choose(table, device("plain", gflops=900), both, rules=rules)
    assert [each.node for each in found.choice.slices] == ["both", "plain"]
    alone = choose(table, both, rules=rules)
    assert alone.assignment == (0, 0, 1, 1)
    assert alone.choice.is_split_refused


def test_what_lies_before_and_behind_a_range_on_one_node_are_two_slices():
    """One slice of both would wait for the range between, which waits for it."""
    rules = (RangeRule(first=2, last=3, allowed=frozenset({NodeId("id-home")})),)
    found = choose(chain_table(*[10] * 5), device("home"), rules=rules)
    assert found.assignment == (0, 0, 1, 1, 2, 2)
    assert [each.node for each in found.choice.slices] == ["home"] * 3


def test_a_range_over_heads_side_by_side_cuts_none_of_them():
    rules = (RangeRule(first=1, last=4, forbidden=frozenset({NodeId("id-c")})),)
    found = choose(two_heads(), device("a"), device("b"), rules=rules)
    _, left, right, left_end, right_end = found.assignment
    assert left == left_end != right == right_end


def test_an_engine_that_nobody_has_is_named():
    with pytest.raises(CannotPlace) as refused:
        choose(chain_table(1), device("a"), rules=(RangeRule(first=0, last=1, backend="tpu"),))
    assert "with backend tpu" in refused.value.message


# Judging what runs.


@pytest.mark.parametrize("objective", ["latency", "throughput", "energy"])
@pytest.mark.parametrize("table", [chain_table(900, 10, 900), two_heads()])
def test_what_was_chosen_is_judged_as_it_was_chosen(objective, table):
    profiles = {"a": [1, 1, 90, 90, 90], "b": [90, 90, 1, 1, 1]}
    size = len(table.operators)
    profiles = {name: times[:size] for name, times in profiles.items()}
    devices = device("a", watts=3.0), device("b", watts=5.0)
    found = choose(table, *devices, profiles=profiles, objective=objective)
    nodes = [each.node_id for each in found.choice.slices]
    wishes = CutWishes(objective=objective)
    judged = cost_of(prepare(table), devices, wishes, NO_WAYS, profiles, found.assignment, nodes)
    assert judged == pytest.approx(found.choice.cost, rel=0.02)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_what_runs_on_one_machine_is_judged_by_its_processor(objective, share):
    table = two_heads()
    apart = device("a"), device("b")
    together = [replace(each, machine="host", processor_share=share) for each in apart]
    wishes = CutWishes(objective=objective)
    assignment = choose(table, *apart).assignment
    nodes = [each.node_id for each in (apart[0], *apart)][: max(assignment) + 1]
    free, shared = (
        cost_of(prepare(table), devices, wishes, NO_WAYS, {}, assignment, nodes)
        for devices in (apart, together)
    )
    assert free is not None
    assert shared is not None
    assert (shared > free * 1.2) == (share == 1.0)


def test_what_lies_on_a_node_that_is_gone_has_no_cost():
    table = chain_table(1)
    gone = [NodeId("id-gone")]
    assert cost_of(prepare(table), [device("a")], CutWishes(), NO_WAYS, {}, (0, 0), gone) is None
