from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_fleet import chain, names, node, part

from din.domain.model import GATEWAY, Edge
from din.domain.node import SLICES_HELD_MAX, NodeId
from din.domain.support import Need, Needs
from din.errors import CannotPlace, NotFound
from din.placement.compare import compare_split
from din.placement.explain import explain
from din.placement.layout import LinkGuess, units_of
from din.placement.planner import plan_deployment, plan_replicas
from din.placement.policy import (
    SEED_STRICT,
    WEIGHTED_LEAST_LOAD,
    WEIGHTED_LEAST_LOAD_LITERAL,
    policy_of,
)
from din.placement.score import choose_node
from din.placement.table import FleetTable


def node_id(number: int) -> NodeId:
    return NodeId(f"{number:016x}")


def reasons(plan) -> list[str]:
    return [placement.reason for placement in plan.placements]


def table_times(times):
    return lambda slice_id, where: times.get((slice_id, where))


def test_equal_nodes_keep_a_model_together():
    plan = plan_deployment(
        [part(0), part(1), part(2)], chain(3), [node(1), node(2)], random=Random(1)
    )
    assert len(set(names(plan.placements))) == 1
    assert reasons(plan) == ["lowest_load", "keeps_tensors_local", "keeps_tensors_local"]
    assert plan.expected_ms is None


def test_the_least_loaded_node_is_chosen():
    fleet = [node(1, queue=3), node(2, cpu=90), node(3, cpu=10), node(4, health_score=0.5)]
    plan = plan_deployment([part(0)], (), fleet, random=Random(1))
    assert names(plan.placements) == ["n3"]
    assert reasons(plan) == ["lowest_load"]


def test_a_node_that_heat_slows_down_counts_as_so_much_slower_and_the_plan_says_so():
    """T25: its capability is derated."""
    fleet = [node(1, capacity_percent=40), node(2, capacity_percent=100, queue=1), node(3, queue=2)]
    plan = plan_deployment([part(0)], (), fleet, random=Random(1))
    assert names(plan.placements) == ["n2"], "1 / 0.4 is more than a queue of one"
    found = explain(part(0), fleet, WEIGHTED_LEAST_LOAD, chosen=[node_id(2)])
    assert {each.node: "40 % (heat or supply)" in each.detail for each in found} == {
        "n1": True,
        "n3": False,
    }


def test_the_table_tells_what_share_of_its_speed_a_node_has():
    fleet = [node(1, capacity_percent=40), node(2, capacity_percent=100), node(3)]
    table = FleetTable.of(fleet)
    found = [table.capacity_percent_of(each.profile.node_id) for each in fleet]
    assert found == [40, 100, 100]
    assert table.capacity_percent_of(NodeId("ff" * 8)) == 100


def test_a_capacity_that_nothing_could_tell_is_taken_for_whole():
    fleet = [node(1, capacity_percent=90), node(2)]
    plan = plan_deployment([part(0)], (), fleet, random=Random(1))
    assert names(plan.placements) == ["n2"]


def test_a_node_that_is_measured_faster_wins_over_a_less_loaded_one():
    times = table_times({("s0", node_id(1)): 2.0, ("s0", node_id(2)): 40.0})
    fleet = [node(1, queue=1), node(2)]
    plan = plan_deployment([part(0)], (), fleet, random=Random(1), times=times)
    assert (names(plan.placements), reasons(plan)) == (["n1"], ["fastest"])
    assert plan.expected_ms == 2.0


def test_equal_loads_are_settled_by_temperature_and_then_by_chance():
    fleet = [node(1, temperature_c=70), node(2, temperature_c=40), node(3, temperature_c=71)]
    plan = plan_deployment([part(0)], (), fleet, random=Random(1))
    assert (names(plan.placements), reasons(plan)) == (["n2"], ["lowest_temperature"])
    alike = [node(1), node(2), node(3)]
    chosen = {
        plan_deployment([part(0)], (), alike, random=Random(seed)).placements[0].node
        for seed in range(40)
    }
    assert chosen == {"n1", "n2", "n3"}


def test_slices_that_do_not_fit_one_node_together_are_spread():
    fleet = [node(1, free_mib=250), node(2, free_mib=250)]
    plan = plan_deployment([part(i) for i in range(4)], chain(4), fleet, random=Random(2))
    assert sorted(names(plan.placements)) == ["n1", "n1", "n2", "n2"]


def test_each_slice_is_pinned_to_its_device_type():
    types = ["x86_64-a", "x86_64-b", "x86_64-c"]
    fleet = [node(i, device_type=each) for i, each in enumerate(types)]
    slices = [part(i, device_type=each) for i, each in enumerate(reversed(types))]
    plan = plan_deployment(slices, chain(3), fleet, random=Random(1))
    assert names(plan.placements) == ["n2", "n1", "n0"]
    assert set(reasons(plan)) == {"pinned_device_type"}


def test_adapters_go_with_the_first_and_the_last_model_slice():
    slices = [
        part(0, device_type="x86_64-a"),
        part(1, device_type="x86_64-b"),
        part(2, kind="before", backend="adapter"),
        part(3, kind="after", backend="adapter"),
    ]
    fleet = [node(1, device_type="x86_64-a"), node(2, device_type="x86_64-b")]
    plan = plan_deployment(slices, chain(2), fleet, random=Random(1))
    assert names(plan.placements) == ["n1", "n2", "n1", "n2"]
    assert [[each.index for each in unit] for unit in units_of(slices)] == [[2, 0], [1, 3]]


def test_a_second_replica_lies_on_another_node_where_memory_allows():
    fleet = [node(1, free_mib=400), node(2, free_mib=250)]
    slices = [part(0, memory_mib=200), part(1, memory_mib=200)]
    plan = plan_deployment(slices, chain(2), fleet, random=Random(1), replicas=2)
    assert names(plan.placements)[:2] == ["n1", "n1"]
    assert names(plan.placements)[2:] == ["n2"]
    more = plan_replicas(
        slices, chain(2), fleet[:1], random=Random(1), existing={0: [node_id(1)], 1: [node_id(1)]}
    )
    assert more == ()


def test_slices_go_where_the_choice_of_cuts_wants_them():
    fleet = [node(1), node(2), node(3)]
    wished = {0: node_id(3), 1: node_id(2)}
    plan = plan_deployment([part(0), part(1)], chain(2), fleet, random=Random(1), wished=wished)
    assert [each.node for each in plan.placements] == ["n3", "n2"]
    assert reasons(plan) == ["chosen_with_cuts", "chosen_with_cuts"]


def test_a_wish_that_cannot_be_had_is_left_aside():
    fleet = [node(1), node(2, free_mib=50)]
    wished = {0: node_id(2), 1: node_id(9)}
    plan = plan_deployment([part(0), part(1)], chain(2), fleet, random=Random(1), wished=wished)
    assert [each.node for each in plan.placements] == ["n1", "n1"]
    kept = plan_deployment([part(0)], (), [node(1), node(2)], random=Random(1),
                           wished={0: node_id(2)}, existing={0: [node_id(1)]})  # fmt: skip
    assert reasons(kept) == ["kept"]


def test_repair_keeps_what_is_there_and_replaces_what_is_gone():
    fleet = [node(1), node(2), node(3, queue=9)]
    existing = {0: [node_id(3)], 1: [node_id(1)], 2: [node_id(7)]}
    plan = plan_deployment(
        [part(0), part(1), part(2)],
        chain(3),
        fleet,
        random=Random(1),
        existing=existing,
        excluded=[node_id(1)],
    )
    assert names(plan.placements)[0] == "n3"
    assert reasons(plan)[0] == "kept"
    assert "n1" not in names(plan.placements)


def test_kept_replicas_count_towards_the_replicas_wanted():
    fleet = [node(1), node(2), node(3)]
    plan = plan_deployment(
        [part(0)], (), fleet, random=Random(1), replicas=2, existing={0: [node_id(1), node_id(2)]}
    )
    assert names(plan.placements) == ["n1", "n2"]
    assert set(reasons(plan)) == {"kept"}


def test_a_kept_slice_stays_on_a_full_node():
    fleet = [node(1, free_mib=0), node(2)]
    plan = plan_deployment([part(0)], (), fleet, random=Random(1), existing={0: [node_id(1)]})
    assert names(plan.placements) == ["n1"]


def test_no_backend_gives_the_first_line_that_the_manual_promises():
    with pytest.raises(CannotPlace) as refusal:
        plan_deployment([part(0, backend="openvino")], (), [node(1), node(2)], random=Random(1))
    lines = refusal.value.message.splitlines()
    assert lines[0] == "no compatible device found for backend openvino"
    assert lines[1] == "  backend (2): n1, n2 have onnxruntime, need openvino"
    assert refusal.value.hint.startswith("the nodes offer onnxruntime")


def test_a_misspelt_backend_is_told_what_was_meant():
    with pytest.raises(CannotPlace) as refusal:
        plan_deployment([part(0, backend="tensorrtt")], (), [node(1)], random=Random(1))
    assert refusal.value.hint.startswith("did you mean 'tensorrt'? the nodes offer onnxruntime")


def test_a_device_type_that_differs_in_one_part_names_the_part_and_the_nearest_node():
    fleet = [
        node(1, device_type="x86_64-cuda11.8-trt8.6"),
        node(2, device_type="aarch64-ascend310P-cann6.3"),
    ]
    wanted = part(0, device_type="aarch64-ascend310p-cann6.3")
    with pytest.raises(CannotPlace) as refusal:
        plan_deployment([wanted], (), fleet, random=Random(1))
    assert refusal.value.hint == (
        "the nearest is n2 (aarch64-ascend310P-cann6.3): accelerator 'ascend310p' != 'ascend310P'"
    )
    assert "arch 'aarch64' != 'x86_64'" in refusal.value.message


def test_memory_that_is_missing_is_named_with_the_roomiest_node():
    fleet = [node(1, free_mib=300), node(2, free_mib=900, reserved_mib=500)]
    with pytest.raises(CannotPlace) as refusal:
        plan_deployment([part(0, memory_mib=1000)], (), fleet, random=Random(1))
    assert "memory (2): n1 has 300 MiB, needs 1000 MiB (300 MiB free, 0 MiB reserved)" in (
        refusal.value.message
    )
    assert "the roomiest node, n2, has 400" in refusal.value.hint


def test_a_node_that_holds_as_many_slices_as_it_may_gets_none_and_is_told_why():
    fleet = [node(1, slices_held=SLICES_HELD_MAX), node(2, slices_held=SLICES_HELD_MAX - 2)]
    plan = plan_deployment(
        [part(0), part(1)], chain(2), fleet, random=Random(1), replicas=2, is_explained=True
    )
    assert names(plan.placements) == ["n2", "n2"]
    assert {(each.node, each.constraint) for each in plan.rejections} == {("n1", "slices")}
    with pytest.raises(CannotPlace) as refusal:
        plan_deployment([part(0)], (), fleet[:1], random=Random(1))
    assert "slices (1): n1 has 256 slices, needs fewer than 256" in refusal.value.message
    assert "a node holds at most 256 slices" in refusal.value.hint


def test_slices_of_one_plan_count_together_against_what_a_node_may_hold():
    nearly = node(1, slices_held=SLICES_HELD_MAX - 1)
    slices = [part(0), part(1), part(2)]
    plan = plan_deployment(slices, chain(3), [nearly, node(2)], random=Random(1))
    assert names(plan.placements).count("n1") <= 1
    with pytest.raises(CannotPlace, match="room for 1 more by the limit of 256 slices a node"):
        plan_deployment(slices, chain(3), [nearly], random=Random(1))


def test_what_a_full_node_holds_already_stays_there():
    full = node(1, slices_held=SLICES_HELD_MAX)
    held = {0: [node_id(1)], 1: [node_id(1)]}
    plan = plan_deployment(
        [part(0), part(1)], chain(2), [full, node(2)], random=Random(1), existing=held
    )
    assert names(plan.placements) == ["n1", "n1"]
    assert {each.reason for each in plan.placements} == {"kept"}


def test_slices_that_fit_one_by_one_but_not_together_are_refused_as_such():
    with pytest.raises(CannotPlace, match="but not all 3 together: they need 300 MiB"):
        plan_deployment(
            [part(0), part(1), part(2)], chain(3), [node(1, free_mib=250)], random=Random(1)
        )


def test_an_empty_fleet_says_how_to_start_a_node():
    with pytest.raises(CannotPlace) as refusal:
        plan_deployment([part(0)], (), [], random=Random(1))
    assert "din node start" in refusal.value.hint


@pytest.mark.parametrize("status", ["suspect", "draining", "lost", "joining"])
def test_a_node_that_is_not_ready_gets_nothing(status):
    with pytest.raises(CannotPlace, match=f"status \\(1\\): n1 is {status}, needs ready"):
        plan_deployment([part(0)], (), [node(1, status=status)], random=Random(1))


def test_hot_and_sick_nodes_get_nothing_and_unknown_temperature_is_no_fault():
    fleet = [node(1, temperature_c=75), node(2, health_score=0.29), node(3, queue=50)]
    plan = plan_deployment([part(0)], (), fleet, random=Random(1), is_explained=True)
    assert names(plan.placements) == ["n3"]
    assert {(each.node, each.constraint) for each in plan.rejections} == {
        ("n1", "temperature"),
        ("n2", "health"),
    }
    (hot,) = [each for each in plan.rejections if each.constraint == "temperature"]
    assert (hot.observed, hot.required) == ("75 C", "< 75 C")


def test_the_strict_policy_adds_cpu_and_accelerator_memory_where_measured():
    fleet = [node(1, cpu=30), node(2, accelerator_mib_free=1536), node(3, cpu=29.9)]
    plan = plan_deployment([part(0)], (), fleet, SEED_STRICT, random=Random(1), is_explained=True)
    assert names(plan.placements) == ["n3"]
    assert plan.policy == "seed-strict"
    assert {each.constraint for each in plan.rejections} == {"cpu", "accelerator_memory"}


def test_the_literal_formula_does_not_see_the_health_of_idle_nodes():
    fleet = [node(1, health_score=0.31), node(2)]
    table = FleetTable.of(fleet)
    literal = {
        choose_node(table, part(0), WEIGHTED_LEAST_LOAD_LITERAL, Random(seed)) for seed in range(30)
    }
    safe = {choose_node(table, part(0), WEIGHTED_LEAST_LOAD, Random(seed)) for seed in range(30)}
    assert literal == {node_id(1), node_id(2)}
    assert safe == {node_id(2)}


def test_nobody_may_take_it_is_none():
    assert choose_node(FleetTable(), part(0), WEIGHTED_LEAST_LOAD, Random(1)) is None
    table = FleetTable.of([node(1)])
    assert choose_node(table, part(0, backend="x"), WEIGHTED_LEAST_LOAD, Random(1)) is None


def test_every_node_not_chosen_has_its_reason():
    fleet = [node(1), node(2, queue=4), node(3, labels={"site": "b"}), node(4, status="suspect")]
    wanted = part(0, labels={"site": "b"})
    found = explain(wanted, fleet, WEIGHTED_LEAST_LOAD, chosen=[node_id(3)])
    assert {(each.node, each.constraint) for each in found} == {
        ("n1", "labels"),
        ("n2", "labels"),
        ("n4", "labels"),
        ("n4", "status"),
    }
    scored = explain(part(0), fleet, WEIGHTED_LEAST_LOAD, chosen=[node_id(1)])
    (worse,) = [each for each in scored if each.node == "n2"]
    assert worse.constraint == "score"
    assert (worse.observed, worse.required) == ("expected 3.125 ms", "< 0.625 ms, the chosen")
    assert "queue, health, load" in worse.detail


def test_counts_keep_at_most_four_examples():
    fleet = [node(number, status="suspect") for number in range(9)] + [node(10)]
    plan = plan_deployment([part(0), part(1)], chain(2), fleet, random=Random(1))
    (count,) = plan.rejection_counts
    assert (count.constraint, count.count, len(count.examples)) == ("status", 18, 4)
    assert plan.rejections == ()


def test_pairs_that_cannot_dial_are_relayed():
    fleet = [node(1, device_type="x86_64-a"), node(2, device_type="x86_64-b")]
    slices = [part(0, device_type="x86_64-a"), part(1, device_type="x86_64-b")]
    links = LinkGuess(undialable=frozenset({(node_id(1), node_id(2))}))
    plan = plan_deployment(slices, chain(2), fleet, random=Random(1), links=links)
    assert plan.relays == (("n1", "n2"),)


def test_a_policy_that_is_not_there_is_not_found():
    assert policy_of("seed-strict") is SEED_STRICT
    with pytest.raises(NotFound) as refusal:
        policy_of("seed-strickt")
    assert "try seed-strict" in refusal.value.hint


def test_the_same_seed_gives_the_same_plan():
    fleet = [node(number) for number in range(20)]
    slices = [part(0), part(1)]
    first, second = (
        plan_deployment(slices, chain(2), fleet, random=Random(5), replicas=3) for _ in range(2)
    )
    assert first == second


def test_a_large_fleet_is_cut_down_to_the_promising_nodes():
    fleet = [node(number, queue=1 + number % 7) for number in range(600)] + [node(700)]
    plan = plan_deployment([part(0), part(1)], chain(2), fleet, random=Random(1))
    assert names(plan.placements) == ["n700", "n700"]


@given(
    st.lists(st.integers(50, 300), min_size=1, max_size=5),
    st.lists(st.integers(50, 700), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_no_plan_overfills_a_node_or_puts_two_replicas_of_a_slice_together(
    sizes, rooms, seed, replicas
):
    slices = [part(index, memory_mib=size) for index, size in enumerate(sizes)]
    fleet = [node(index, free_mib=room) for index, room in enumerate(rooms)]
    try:
        plan = plan_deployment(
            slices, chain(len(slices)), fleet, random=Random(seed), replicas=replicas
        )
    except CannotPlace:
        return
    used: dict[str, int] = {}
    for placement in plan.placements:
        used[placement.node] = used.get(placement.node, 0) + placement.memory_mib
    assert all(used[name] <= rooms[int(name[1:])] for name in used)
    pairs = [(each.slice_index, each.node) for each in plan.placements]
    assert len(pairs) == len(set(pairs))
    assert [each.slice_index for each in plan.placements[: len(slices)]] == list(range(len(slices)))


EDGES = (Edge("x", GATEWAY, (0,)), Edge("t0", 0, (1,)), Edge("t1", 1, (GATEWAY,)))


def split_on_two_nodes(times, **more):
    slices = [part(0, device_type="x86_64-a"), part(1, device_type="x86_64-b")]
    fleet = [node(1, device_type="x86_64-a"), node(2, device_type="x86_64-b")]
    plan = plan_deployment(slices, EDGES, fleet, random=Random(1))
    return compare_split(slices, EDGES, plan.placements, table_times(times), **more)


def test_a_split_that_loses_against_one_node_would_be_refused():
    times = {("s0", node_id(1)): 10.0, ("s1", node_id(1)): 10.0, ("s1", node_id(2)): 11.0}
    found = split_on_two_nodes(times)
    assert (found.whole_ms, found.whole_node) == (20.0, "n1")
    assert found.split_ms == pytest.approx(21.0 + found.transfer_ms)
    assert found.is_split_refused is True
    assert found.verdict.startswith("DIN would refuse to split: 20.0 ms whole on n1, 21.")


def test_a_split_that_wins_pays():
    times = {("s0", node_id(1)): 10.0, ("s1", node_id(2)): 11.0}
    found = split_on_two_nodes(times, whole_ms={node_id(1): 90.0})
    assert found.is_split_refused is False
    assert found.verdict.startswith("the split pays: 90.0 ms whole")


def test_where_nothing_crosses_between_nodes_no_split_is_said_to_pay():
    slices = [part(0), part(1)]
    plan = plan_deployment(slices, EDGES, [node(1)], random=Random(1), replicas=1)
    times = {("s0", node_id(1)): 10.0, ("s1", node_id(1)): 10.0}
    found = compare_split(slices, EDGES, plan.placements, table_times(times))
    assert found.verdict == "nothing crosses between nodes: 20.0 ms on n1"


def test_what_was_not_measured_has_no_figure_and_no_verdict():
    found = split_on_two_nodes({("s0", node_id(1)): 10.0})
    assert (found.whole_ms, found.split_ms, found.is_split_refused) == (None, None, None)
    assert "not known yet" in found.verdict
    half = split_on_two_nodes({("s0", node_id(1)): 1.0, ("s1", node_id(2)): 1.0})
    assert half.split_ms is not None
    assert (half.whole_ms, half.is_split_refused) == (None, None)


# Integers.

QUANTISED = Needs(17, 9, (Need("QLinearConv", 10, "conv"),))
AVX2, VNNI = ("avx2",), ("avx2", "avx512_vnni")


def mixed_fleet():
    """The node with the other instruction sets has the least to do."""
    return [
        node(1, cpu_isa=VNNI, cpu=20), node(2, cpu_isa=AVX2, cpu=0), node(3, cpu_isa=VNNI, cpu=50),
    ]  # fmt: skip


def test_replicas_of_a_slice_of_integers_are_only_where_these_come_out_alike():
    """T40."""
    kept = {0: (node_id(1),)}
    plan = plan_deployment(
        [part(0, needs=QUANTISED)], (), mixed_fleet(), random=Random(1), replicas=3, existing=kept
    )
    assert names(plan.placements) == ["n1", "n3"]
    (count,) = plan.rejection_counts
    (barred,) = count.examples
    assert (count.constraint, barred.node) == ("integers", "n2")
    assert "vnni" in barred.required
    assert "vnni" not in barred.observed
    assert "avx2" in barred.observed
    floats = plan_deployment([part(0)], (), mixed_fleet(), random=Random(1), replicas=3,
                             existing=kept)  # fmt: skip
    assert sorted(names(floats.placements)) == ["n1", "n2", "n3"]


def test_one_replica_of_a_slice_of_integers_is_chosen_by_what_is_expected_alone():
    plan = plan_deployment(
        [part(0, needs=QUANTISED)], (), mixed_fleet(), random=Random(1), is_explained=True
    )
    assert names(plan.placements) == ["n2"]
    assert {(each.node, each.constraint) for each in plan.rejections} == {
        ("n1", "score"),
        ("n3", "score"),
    }


def test_why_a_node_of_another_kind_has_no_replica_beside_one_that_stays_is_explained():
    """T40."""
    kept = {0: (node_id(1),)}
    plan = plan_deployment(
        [part(0, needs=QUANTISED)], (), mixed_fleet(), random=Random(1),
        existing=kept, is_explained=True,
    )  # fmt: skip
    found = {each.node: each.constraint for each in plan.rejections}
    assert found == {"n2": "integers", "n3": "score"}


def test_a_first_and_a_second_replica_that_are_placed_together_are_alike():
    """T40."""
    plan = plan_deployment(
        [part(0, needs=QUANTISED)], (), mixed_fleet(), random=Random(1), replicas=2
    )
    assert names(plan.placements) == ["n2"]


def test_a_slice_of_integers_leaves_a_drained_node_for_any_that_can_take_it():
    fleet = mixed_fleet()[:2]
    plan = plan_deployment(
        [part(0, needs=QUANTISED)], (), fleet, random=Random(1),
        existing={0: (node_id(1),)}, leaving=(node_id(1),),
    )  # fmt: skip
    assert names(plan.placements) == ["n1", "n2"]
