"""Sensitive and sealed slices: who may hold them, and what is said of the others."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from placement_fleet import chain, names, node, part

from din.domain.model import Artifact
from din.domain.node import FleetNode
from din.errors import CannotPlace
from din.placement.planner import plan_deployment

HOME = {"trust": "high"}
SEALED = (Artifact("ab" * 32, 10, "model", "cd" * 32, 5),)


def keyless(number: int) -> FleetNode:
    return replace(node(number), takes_grants=False)


def test_sensitive_slices_go_to_trusted_nodes_only_and_the_plan_says_why() -> None:
    slices = [part(0, is_sensitive=True), part(1), part(2, is_sensitive=True)]
    fleet = [
        node(1, labels=HOME, queue=50, free_mib=200),
        node(2),
        node(3, labels={"trust": "low"}),
    ]
    plan = plan_deployment(slices, chain(3), fleet, random=Random(1), is_explained=True)
    assert names(plan.placements)[::2] == ["n1", "n1"]
    assert names(plan.placements)[1] in ("n2", "n3")
    found = {
        (each.node, each.observed, each.required, each.detail)
        for each in plan.rejections
        if each.constraint == "trust" and each.slice_index == 0
    }
    assert found == {
        ("n2", "no trust label", "trust: high", "slice 'part0' is sensitive"),
        ("n3", "trust: low", "trust: high", "slice 'part0' is sensitive"),
    }


def test_a_sensitive_slice_without_a_trusted_node_cannot_be_placed() -> None:
    with pytest.raises(CannotPlace, match=r"trust \(2\): n1, n2 have no trust label") as caught:
        plan_deployment([part(0, is_sensitive=True)], (), [node(1), node(2)], random=Random(1))
    assert "din node label NODE trust=high" in caught.value.hint


def test_a_trusted_node_that_is_too_small_is_said_to_be_too_small() -> None:
    fleet = [node(1, labels=HOME, free_mib=10), node(2)]
    with pytest.raises(CannotPlace, match="memory") as caught:
        plan_deployment([part(0, is_sensitive=True)], (), fleet, random=Random(1))
    assert "needs 100 MiB" in caught.value.hint


def test_every_replica_of_a_sensitive_slice_is_on_a_trusted_node() -> None:
    fleet = [node(1, labels=HOME), node(2), node(3, labels=HOME), node(4)]
    slices = [part(0, is_sensitive=True)]
    plan = plan_deployment(slices, (), fleet, random=Random(1), replicas=4)
    assert sorted(names(plan.placements)) == ["n1", "n3"]


def test_sealed_slices_go_where_a_key_can_be_granted() -> None:
    slices = [part(0, artifacts=SEALED)]
    plan = plan_deployment(
        slices, (), [keyless(1), node(2, queue=9)], random=Random(1), is_explained=True
    )
    assert names(plan.placements) == ["n2"]
    assert {(each.node, each.constraint) for each in plan.rejections} == {("n1", "key")}
    with pytest.raises(CannotPlace, match="no certificate") as caught:
        plan_deployment(slices, (), [keyless(1)], random=Random(1))
    assert "--no-encrypt" in caught.value.hint


def test_what_is_not_sealed_needs_no_key() -> None:
    plan = plan_deployment([part(0)], (), [keyless(1)], random=Random(1))
    assert names(plan.placements) == ["n1"]
