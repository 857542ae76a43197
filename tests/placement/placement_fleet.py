"""Nodes and slices for the tests of this room."""

from __future__ import annotations

from din.domain.model import Edge, Slice
from din.domain.node import FleetNode, NodeHealth, NodeId, NodeProfile
from din.domain.tensor import TensorSpec


def node(
    number: int,
    *,
    backends: tuple[str, ...] = ("onnxruntime",),
    device_type: str = "x86_64",
    labels: dict[str, str] | None = None,
    memory_mib: int = 8000,
    free_mib: int | None = 4000,
    cpu: float | None = None,
    temperature_c: float | None = None,
    accelerator_mib_free: int | None = None,
    queue: int = 0,
    status: str = "ready",
    health_score: float = 1.0,
    reserved_mib: int = 0,
    cpu_isa: tuple[str, ...] = (),
    slices_held: int = 0,
    capacity_percent: int | None = None,
) -> FleetNode:
    return FleetNode(
        profile=NodeProfile(
            node_id=NodeId(f"{number:016x}"),
            session=1,
            name=f"n{number}",
            device_type=device_type,
            cpu_model="any",
            cpu_isa=cpu_isa,
            cpu_cores=2,
            memory_mib=memory_mib,
            backends=backends,
            labels=labels or {},
        ),
        health=NodeHealth(
            cpu_percent=cpu,
            memory_mib_free=free_mib,
            temperature_c=temperature_c,
            accelerator_memory_mib_free=accelerator_mib_free,
            queue_length=queue,
            capacity_percent=capacity_percent,
        ),
        status=status,  # pyright: ignore[reportArgumentType]
        health_score=health_score,
        memory_mib_reserved=reserved_mib,
        slices_held=slices_held,
    )


def part(index: int, **changes: object) -> Slice:
    fields: dict[str, object] = {
        "index": index,
        "slice_id": f"s{index}",
        "name": f"part{index}",
        "inputs": (),
        "outputs": (TensorSpec(f"t{index}", "FP32", (1, 64, 64)),),
        "memory_mib": 100,
    }
    return Slice(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


def chain(count: int) -> tuple[Edge, ...]:
    return tuple(Edge(f"t{index}", index, (index + 1,)) for index in range(count - 1))


def names(placements) -> list[str]:
    return [placement.node for placement in placements]
