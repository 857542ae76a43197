"""Slices that are pinned to nodes or kept off them, and what is said of the others."""

from __future__ import annotations

from random import Random

import pytest
from placement_fleet import chain, names, node, part

from din.domain.node import NodeId
from din.errors import CannotPlace
from din.placement.planner import plan_deployment
from din.placement.table import FleetTable


def test_a_pinned_slice_goes_there_and_each_other_node_is_told_so() -> None:
    slices = [part(0, nodes=("n2",)), part(1, not_nodes=("n2", f"{3:016x}"))]
    fleet = [node(1, queue=50), node(2, queue=90), node(3)]
    plan = plan_deployment(slices, chain(2), fleet, random=Random(1), is_explained=True)
    assert names(plan.placements) == ["n2", "n1"]
    said = {
        (each.slice_index, each.node, each.required)
        for each in plan.rejections
        if each.constraint == "nodes"
    }
    assert said == {
        (0, "n1", "pinned to node n2"),
        (0, "n3", "pinned to node n2"),
        (1, "n2", "kept off node n2"),
        (1, "n3", f"kept off node {3:016x}"),
    }


def test_replicas_keep_to_the_pinned_nodes_by_name_or_id() -> None:
    slices = [part(0, nodes=("n1", f"{3:016x}"))]
    fleet = [node(number) for number in range(1, 5)]
    plan = plan_deployment(slices, (), fleet, random=Random(1), replicas=4)
    assert set(names(plan.placements)) == {"n1", "n3"}


def test_a_slice_pinned_to_a_node_that_has_not_joined_cannot_be_placed() -> None:
    with pytest.raises(CannotPlace) as caught:
        plan_deployment([part(0, nodes=("n9",))], (), [node(1), node(2)], random=Random(1))
    assert "nodes (2): n1, n2: pinned to node n9" in caught.value.message
    assert "n9, which has not joined; the nodes here are n1, n2" in caught.value.hint


def test_a_pinned_node_that_is_too_small_is_said_to_be_too_small() -> None:
    fleet = [node(1), node(2, memory_mib=9000, free_mib=8000)]
    with pytest.raises(CannotPlace, match=r"memory \(1\): n1 has .* needs 5000 MiB") as caught:
        plan_deployment([part(0, nodes=("n1",), memory_mib=5000)], (), fleet, random=Random(1))
    assert "not joined" not in caught.value.hint


def test_who_is_named_is_found_anew_when_nodes_come_and_go() -> None:
    table = FleetTable.of([node(1), node(2)])
    words = frozenset({"n2", "n3"})
    assert table.named(words).tolist() == [False, True]
    table.upsert(node(3))
    table.remove(NodeId(f"{2:016x}"))
    assert table.named(words).tolist() == [False, False, True]
