import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from placement_fleet import node, part

from din.domain.node import NodeHealth, NodeId
from din.errors import NotFound
from din.placement.capability import CapabilityIndex, Wish, capability_of, wish_of
from din.placement.constraints import may_take
from din.placement.policy import POLICIES, WEIGHTED_LEAST_LOAD
from din.placement.table import FleetTable


def test_unknown_values_are_nan_and_unknown_memory_is_the_total():
    table = FleetTable.of([node(1, free_mib=None, memory_mib=2048, reserved_mib=48)])
    assert np.isnan(table.temperature_c[0])
    assert np.isnan(table.cpu_percent[0])
    assert np.isnan(table.memory_mib_free[0])
    assert table.memory_mib_room[0] == 2000


def test_a_sample_changes_columns_but_not_the_version():
    table = FleetTable.of([node(1)])
    version = table.version
    health = NodeHealth(cpu_percent=50, memory_mib_free=100, temperature_c=61.5, queue_length=3)
    table.sample(NodeId(f"{1:016x}"), health, 0.9)
    assert table.version == version
    assert (table.queue[0], table.temperature_c[0]) == (3, 61.5)
    assert table.memory_mib_room[0] == 100


def test_rows_are_reused_under_a_new_generation():
    table = FleetTable.of([node(1), node(2)])
    row = table.row(NodeId(f"{1:016x}"))
    generation = int(table.generation[row])
    table.remove(NodeId(f"{1:016x}"))
    assert table.upsert(node(3)) == row
    assert not table.is_current(row, generation)
    assert table.name(row) == "n3"
    assert len(table) == 2


def test_the_table_grows_beyond_its_capacity():
    table = FleetTable(capacity=2)
    for number in range(50):
        table.upsert(node(number, queue=number))
    assert len(table) == 50
    assert table.queue[:50].tolist() == list(range(50))
    assert may_take(table, part(0), WEIGHTED_LEAST_LOAD).all()


def test_an_unknown_node_is_not_found():
    table = FleetTable()
    with pytest.raises(NotFound, match="not in the fleet"):
        table.sample(NodeId("feed"), NodeHealth(), 1.0)


def test_a_wish_compares_backend_device_type_and_labels_exactly():
    able = capability_of(
        node(1, backends=("openvino",), device_type="aarch64-npu", labels={"site": "a"})
    )
    assert Wish("openvino", "aarch64-npu", frozenset({("site", "a")})).is_met_by(able)
    assert not Wish("OpenVINO").is_met_by(able)
    assert not Wish(device_type="aarch64-NPU").is_met_by(able)
    assert not Wish(labels=frozenset({("site", "b")})).is_met_by(able)
    assert Wish().is_met_by(able)


def test_adapters_ask_for_no_backend():
    assert wish_of(part(0, kind="before", backend="adapter")).backend is None
    assert wish_of(part(0)).backend == "onnxruntime"
    assert wish_of(part(0, backend="probe")).backend == "onnxruntime"


def test_kinds_that_nobody_has_any_more_are_reused():
    index = CapabilityIndex()
    wish = Wish(labels=frozenset({("host", "h39")}))
    index.fits(wish)
    for number in range(40):
        kind = capability_of(node(1, labels={"host": f"h{number}"}))
        taken = index.acquire(kind)
        assert taken == 0
        assert index.fits(wish)[taken] == (number == 39)
        index.release(taken)
    assert not list(index.kinds())


IDS = st.integers(0, 12)


class TableMachine(RuleBasedStateMachine):
    """The table against a plain dict of nodes."""

    def __init__(self):
        super().__init__()
        self.table = FleetTable(capacity=2)
        self.model = {}

    @rule(
        number=IDS,
        backend=st.sampled_from(["onnxruntime", "openvino"]),
        labels=st.sampled_from([None, {"site": "a"}, {"site": "b", "line": "3"}]),
        status=st.sampled_from(["ready", "suspect", "draining"]),
        free=st.one_of(st.none(), st.integers(0, 400)),
        temperature=st.one_of(st.none(), st.floats(20, 90)),
        health=st.floats(0, 1),
    )
    def upsert(self, number, backend, labels, status, free, temperature, health):
        made = node(
            number,
            backends=(backend,),
            labels=labels,
            status=status,
            free_mib=free,
            memory_mib=200,
            temperature_c=temperature,
            health_score=health,
        )
        self.model[made.profile.node_id] = made
        self.table.upsert(made)

    @rule(number=IDS)
    def remove(self, number):
        node_id = NodeId(f"{number:016x}")
        if node_id in self.model:
            del self.model[node_id]
            self.table.remove(node_id)

    @invariant()
    def candidates_are_those_that_plain_python_finds(self):
        for wanted in (
            part(0, backend="openvino"),
            part(0, labels={"site": "a"}),
            part(0, memory_mib=150),
        ):
            flags = may_take(self.table, wanted, WEIGHTED_LEAST_LOAD)
            rows = [row for row in self.table.rows().tolist() if flags[row]]
            assert {self.table.node_id(row) for row in rows} == {
                node_id for node_id, each in self.model.items() if plainly(each, wanted)
            }
            assert not any(flags[row] for row in range(self.table.size) if row not in rows)


def plainly(each, wanted):
    free = each.health.memory_mib_free
    temperature = each.health.temperature_c
    return (
        each.status == "ready"
        and wanted.backend in each.profile.backends
        and wanted.labels.items() <= each.profile.labels.items()
        and (each.profile.memory_mib if free is None else free) >= wanted.memory_mib
        and np.float32(each.health_score) >= np.float32(0.3)
        and not (temperature is not None and np.float32(temperature) >= 75)
    )


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_policies_have_unique_names_and_versions():
    assert {name: policy.version for name, policy in POLICIES.items()} == {
        "weighted-least-load": 1,
        "seed-strict": 1,
        "weighted-least-load-literal": 1,
    }
