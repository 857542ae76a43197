"""Analyses, nodes and choices for models that DIN cuts, made by hand."""

from __future__ import annotations

from din.domain.cuts import CutTable, OperatorFacts, ValueFacts
from din.domain.model import GATEWAY
from din.domain.node import NodeId
from din.domain.views import RegisterModel
from din.gateway.registration.cutting import Terrain
from din.placement.partitioning import Chosen, choose_cuts, prepare
from din.placement.places import CutWishes, Device
from din.placement.ways import Ways

MIB = 2**20


def table_of(count: int, weights_mib: int, source_sha256: str = "a" * 64) -> CutTable:
    """A chain of operators, each with weights of its own."""
    values = [ValueFacts("x", GATEWAY, (0,), 100, True, False, True, False)]
    values += [
        ValueFacts(f"t{place}", place, (place + 1,), 100, True, False, True, False)
        for place in range(count - 1)
    ]
    values.append(ValueFacts("y", count - 1, (), 100, True, True, True, False))
    return CutTable(
        source_sha256=source_sha256,
        operators=tuple(
            OperatorFacts(f"op{place}", "MatMul", 10**9, weights_mib * MIB, 0)
            for place in range(count)
        ),
        values=tuple(values),
    )


def device(name: str, room_mib: float = 1000, gflops: float = 10) -> Device:
    return Device(
        node_id=NodeId(name), name=name, device_class=name, gflops=gflops, room_mib=room_mib
    )


def terrain_of(*devices: Device) -> Terrain:
    return Terrain(
        devices=devices, ways=Ways(), named={each.name: each.node_id for each in devices}
    )


def no_terrain(_order: RegisterModel) -> Terrain:
    return terrain_of()


def two_slices() -> Chosen:
    """What is chosen when two nodes have to share two operators."""
    devices = (device("a", 100), device("b", 100))
    return choose_cuts(prepare(table_of(2, 20)), devices, CutWishes(), Ways())
