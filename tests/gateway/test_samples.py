"""Samples of beats: the newest is in the table as soon as somebody looks."""

from __future__ import annotations

import math

import pytest

from din.domain.node import FleetNode, NodeHealth, NodeId, NodeProfile
from din.errors import NotFound
from din.gateway.nodes.samples import Samples

NODE, OTHER = NodeId("00000000000000aa"), NodeId("00000000000000bb")


def node(node_id: NodeId = NODE, **health: float) -> FleetNode:
    profile = NodeProfile(
        node_id=node_id,
        session=1,
        name=f"node-{node_id[-2:]}",
        device_type="x86_64",
        cpu_model="cpu",
        cpu_isa=(),
        cpu_cores=1.0,
        memory_mib=1000,
        backends=(),
        addresses=(),
    )
    return FleetNode(profile=profile, health=NodeHealth(**health), status="ready")


def samples(loaded_mib: int = 0) -> Samples:
    made = Samples(lambda _: loaded_mib)
    made.put(node(cpu_percent=10.0))
    return made


def seen(of: Samples, node_id: NodeId = NODE) -> tuple[float, float]:
    """Processor and health score in the table."""
    table = of.table()
    row = table.row(node_id)
    return float(table.cpu_percent[row]), round(float(table.health[row]), 3)


def test_of_many_beats_the_newest_is_in_the_table_when_somebody_looks() -> None:
    of = samples()
    for cpu in (20.0, 30.0, 40.0):
        of.take(NODE, NodeHealth(cpu_percent=cpu), 0.5)
    assert seen(of) == (40.0, 0.5)
    of.take(NODE, NodeHealth(), 0.75)
    cpu, score = seen(of)
    assert (math.isnan(cpu), score) == (True, 0.75)


def test_a_score_between_beats_counts_for_written_and_waiting_samples() -> None:
    of = samples()
    of.set_score(NODE, 0.25)
    assert seen(of) == (10.0, 0.25)
    of.take(NODE, NodeHealth(cpu_percent=50.0), 1.0)
    of.set_score(NODE, 0.125)
    assert seen(of) == (50.0, 0.125)
    of.set_score(OTHER, 1.0)  # nobody of that name


def test_a_node_that_is_put_anew_is_as_it_was_put() -> None:
    of = samples()
    of.take(NODE, NodeHealth(cpu_percent=99.0), 0.5)
    of.put(node(cpu_percent=5.0))
    assert seen(of) == (5.0, 1.0)


def test_a_node_that_is_forgotten_leaves_nothing() -> None:
    of = samples()
    of.take(NODE, NodeHealth(cpu_percent=99.0), 0.5)
    assert of.remove(NODE) == "node-aa"
    assert of.remove(NODE) is None
    assert NODE not in of
    with pytest.raises(NotFound):
        seen(of)
    of.put(node(OTHER, cpu_percent=7.0))
    assert seen(of, OTHER) == (7.0, 1.0)


def test_what_is_loaded_counts_as_free_within_what_the_node_offers() -> None:
    def free(of: Samples) -> float:
        table = of.table()
        return float(table.memory_mib_free[table.row(NODE)])

    of = samples(loaded_mib=300)
    of.take(NODE, NodeHealth(memory_mib_free=500), 1.0)
    assert free(of) == 800
    of.take(NODE, NodeHealth(memory_mib_free=900), 1.0)
    assert free(of) == 1000
