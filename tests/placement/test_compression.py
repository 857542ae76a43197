"""Slices whose tensors cross compressed go to nodes that can read them."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from placement_fleet import chain, names, node, part

from din.domain.node import FleetNode
from din.errors import CannotPlace
from din.placement.planner import plan_deployment


def able(number: int) -> FleetNode:
    plain = node(number)
    return replace(plain, profile=replace(plain.profile, versions={"zstd": "0.25.0"}))


def test_nodes_that_cannot_read_it_take_no_slice_at_a_compressed_cut_and_the_plan_says_why() -> (
    None
):
    slices = [part(index, compression="zstd") for index in range(2)]
    fleet = [node(1), able(2), node(3)]
    plan = plan_deployment(slices, chain(2), fleet, random=Random(1), is_explained=True)
    assert names(plan.placements) == ["n2", "n2"]
    found = {
        (each.node, each.slice_index, each.observed, each.required, each.detail)
        for each in plan.rejections
        if each.constraint == "compression"
    }
    assert ("n1", 1, "no zstd", "zstd", "what crosses to and from slice 'part1' is compressed") in (
        found
    )
    assert {each[:2] for each in found} == {("n1", 0), ("n1", 1), ("n3", 0), ("n3", 1)}


def test_an_adapter_of_a_compressed_model_asks_the_same() -> None:
    adapter = part(0, kind="before", backend="adapter", compression="zstd")
    plan = plan_deployment([adapter], (), [node(1), able(2)], random=Random(1))
    assert names(plan.placements) == ["n2"]


def test_without_compression_any_node_will_do() -> None:
    plan = plan_deployment([part(0)], (), [node(1)], random=Random(1))
    assert names(plan.placements) == ["n1"]


def test_where_no_node_can_what_to_do_is_said() -> None:
    with pytest.raises(CannotPlace, match=r"compression \(1\): n1 has no zstd") as refused:
        plan_deployment([part(0, compression="zstd")], (), [node(1)], random=Random(1))
    assert "upgrade DIN" in refused.value.hint
