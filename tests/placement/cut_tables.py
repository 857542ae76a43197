"""Models as the choice of cuts sees them, made by hand."""

from __future__ import annotations

from din.domain.cuts import CutTable, OperatorFacts, SharedWeights, ValueFacts
from din.domain.model import GATEWAY
from din.domain.node import NodeId
from din.placement.places import Device

GFLOP = 10**9
MIB = 2**20


def operator(name: str, gflop: float = 1.0, weights: int = 0, live: int = 0) -> OperatorFacts:
    return OperatorFacts(name, "Conv", int(gflop * GFLOP), weights, live)


def value(tensor: str, maker: int, *readers: int, nbytes: int = 1000, **facts: bool) -> ValueFacts:
    return ValueFacts(
        tensor,
        maker,
        readers,
        nbytes,
        facts.get("is_exact", True),
        facts.get("is_output", not readers),
        facts.get("can_travel", True),
        facts.get("is_pair", False),
    )


def chain_table(
    *nbytes: int, gflop: float = 1.0, weights: int = 0, shared: tuple[SharedWeights, ...] = ()
) -> CutTable:
    """Operators op0, op1, ... of equal work; `nbytes` cross the boundaries between them."""
    count = len(nbytes) + 1
    values = [value("x", GATEWAY, 0, is_output=False)]
    values += [value(f"t{i}", i, i + 1, nbytes=size) for i, size in enumerate(nbytes)]
    values.append(value("y", count - 1))
    operators = tuple(operator(f"op{i}", gflop, weights) for i in range(count))
    return CutTable(
        source_sha256="a" * 64, operators=operators, values=tuple(values), shared=shared
    )


def two_heads(gflop: float = 10.0, tail: bool = False) -> CutTable:
    """A light trunk and two heavy heads of two operators each, joined or not."""
    operators = [operator("trunk", 0.1)]
    operators += [operator(name, gflop) for name in ("left.0", "right.0", "left.1", "right.1")]
    values = [
        value("x", GATEWAY, 0, is_output=False),
        value("stem", 0, 1, 2),
        value("l", 1, 3),
        value("r", 2, 4),
    ]
    if tail:
        operators.append(operator("join", 0.1))
        values += [value("l1", 3, 5), value("r1", 4, 5), value("y", 5)]
    else:
        values += [value("l1", 3), value("r1", 4)]
    return CutTable(source_sha256="b" * 64, operators=tuple(operators), values=tuple(values))


def device(name: str, gflops: float = 10.0, room_mib: float = 4096, **facts: object) -> Device:
    return Device(
        node_id=NodeId(f"id-{name}"),
        name=name,
        device_class=str(facts.pop("device_class", name)),
        gflops=gflops,
        room_mib=room_mib,
        **facts,
    )
