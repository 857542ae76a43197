"""The hard conditions, each once: as an array over all nodes, and as words about one node.

Each constraint is a row of `CHECKS`: `passes` says for every row of the table whether it may take
the slice, `reject` says why one row may not. A value that was not measured passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from din.domain.device import parse_device_type
from din.domain.foreign import backends_of, is_foreign, model_of, trouble_with
from din.domain.model import Slice
from din.domain.node import SLICES_HELD_MAX, ZSTD_WORD
from din.domain.plan import Rejection
from din.domain.support import lacks, located, mispairing
from din.errors import UsageError
from din.placement.capability import (
    TRUST_LABEL,
    Flags,
    Wish,
    capability_of,
    operators_wish,
    trust_wish,
    wish_of,
)
from din.placement.policy import Constraint, ConstraintName, Policy
from din.placement.table import STATUS_CODE, FleetTable

STATIC: Final[frozenset[ConstraintName]] = frozenset(
    ("status", "backend", "operators", "device_type", "labels", "trust", "key", "compression")
)
"""Constraints that FleetTable.eligible answers from its cache."""


class Words(NamedTuple):
    """What a rejection says."""

    observed: str
    required: str
    detail: str = ""


class Check(NamedTuple):
    """One constraint."""

    passes: Callable[[FleetTable, Slice, float], Flags]
    words: Callable[[FleetTable, int, Slice, float], Words]


def may_take(table: FleetTable, part: Slice, policy: Policy) -> Flags:
    """Per row whether the node meets every constraint of the policy for this slice."""
    flags = table.eligible(wish_of(part)).copy()
    for constraint in policy.constraints:
        if constraint.name not in STATIC:
            flags &= CHECKS[constraint.name].passes(table, part, constraint.limit or 0.0)
    return flags


def passes(table: FleetTable, part: Slice, constraint: Constraint) -> Flags:
    """Per row whether the node meets one constraint. Empty rows may say anything."""
    return CHECKS[constraint.name].passes(table, part, constraint.limit or 0.0)


def reject(table: FleetTable, row: int, part: Slice, constraint: Constraint) -> Rejection:
    """Why the node in this row may not take the slice, given that it does not pass."""
    words = CHECKS[constraint.name].words(table, row, part, constraint.limit or 0.0)
    return Rejection(
        slice_index=part.index,
        node_id=table.node_id(row),
        node=table.name(row),
        constraint=constraint.name,
        observed=words.observed,
        required=words.required,
        detail=words.detail,
    )


def device_type_differences(wanted: str, offered: str) -> tuple[str, ...]:
    """The parts in which two device types differ, each with both values; empty when equal."""
    try:
        return parse_device_type(wanted).differences(parse_device_type(offered))
    except UsageError:
        return () if wanted == offered else (f"{wanted!r} != {offered!r}",)


def nearest_device_type(wanted: str, offered: set[str]) -> str | None:
    """The device type in the fleet that differs in the fewest parts, ignoring case second."""

    def distance(each: str) -> tuple[int, int, str]:
        folded = device_type_differences(wanted.casefold(), each.casefold())
        return (len(folded), len(device_type_differences(wanted, each)), each)

    return min(offered, key=distance, default=None)


def _status_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    return Words(table.status_of(row), "ready")


def _backend_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    node = table.node(row)
    profile = node.profile
    offered = ", ".join((*profile.backends, *backends_of(node.foreign))) or "none"
    if is_foreign(part.backend):
        return Words(offered, part.backend, trouble_with(model_of(part.backend), node.foreign))
    return Words(offered, part.backend, mispairing(part.backend, profile.device_type))


def _operators_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    engines = capability_of(table.node(row)).engines
    wish = operators_wish(part)
    engine = next(each for each in engines if each.backend == wish.engine)
    found = list(lacks(part.needs, engine))
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Words(str(engine), found[0].what, f"{located(found[0])}{more}")


def _device_type_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    offered = table.node(row).profile.device_type
    wanted = part.device_type or ""
    return Words(offered, wanted, "; ".join(device_type_differences(wanted, offered)))


def _labels_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    offered = table.node(row).profile.labels
    wrong = {key: value for key, value in part.labels.items() if offered.get(key) != value}
    return Words(
        ", ".join(f"{key}={offered[key]}" for key in wrong if key in offered) or "not set",
        ", ".join(f"{key}={value}" for key, value in wrong.items()),
    )


def _trust_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    label = table.node(row).profile.labels.get(TRUST_LABEL)
    observed = f"trust: {label}" if label else "no trust label"
    return Words(observed, "trust: high", f"slice {part.name!r} is sensitive")


def _key_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    return Words("no certificate", "one, to be granted the key", f"slice {part.name!r} is sealed")


def _compression_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    detail = f"what crosses to and from slice {part.name!r} is compressed"
    return Words(f"no {ZSTD_WORD}", ZSTD_WORD, detail)


def _may_have(table: FleetTable, part: Slice, limit: float) -> Flags:
    if not (part.nodes or part.not_nodes):
        return np.ones(table.size, dtype=np.bool_)
    flags = ~table.named(frozenset(part.not_nodes))
    return flags & table.named(frozenset(part.nodes)) if part.nodes else flags


def _nodes_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    kept_off = {table.name(row), table.node_id(row)} & set(part.not_nodes)
    if kept_off:
        return Words("", f"kept off node {min(kept_off)}")
    nodes = "nodes" if len(part.nodes) > 1 else "node"
    return Words("", f"pinned to {nodes} {', '.join(part.nodes)}")


def _memory_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    free = float(table.memory_mib_free[row])
    reserved = float(table.memory_mib_reserved[row])
    total = float(table.memory_mib_total[row])
    known = f"{free:.0f} MiB free" if free == free else f"{total:.0f} MiB in total"  # noqa: PLR0124 - NaN test
    detail = f"{known}, {reserved:.0f} MiB reserved"
    return Words(f"{table.memory_mib_room[row]:.0f} MiB", f"{part.memory_mib} MiB", detail)


def _slices_words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
    return Words(f"{table.slices_held[row]:.0f} slices", f"fewer than {SLICES_HELD_MAX}")


def _measured(
    column: str, unit: str, sign: str
) -> Callable[[FleetTable, int, Slice, float], Words]:
    def words(table: FleetTable, row: int, part: Slice, limit: float) -> Words:
        return Words(f"{float(getattr(table, column)[row]):.3g}{unit}", f"{sign} {limit:g}{unit}")

    return words


CHECKS: Final[dict[ConstraintName, Check]] = {
    "status": Check(
        lambda table, part, limit: table.status[: table.size] == STATUS_CODE["ready"],
        _status_words,
    ),
    "backend": Check(
        lambda table, part, limit: table.met_by(Wish(backend=wish_of(part).backend)),
        _backend_words,
    ),
    "operators": Check(
        lambda table, part, limit: table.met_by(operators_wish(part)), _operators_words
    ),
    "device_type": Check(
        lambda table, part, limit: table.met_by(Wish(device_type=part.device_type)),
        _device_type_words,
    ),
    "labels": Check(
        lambda table, part, limit: table.met_by(Wish(labels=frozenset(part.labels.items()))),
        _labels_words,
    ),
    "trust": Check(
        lambda table, part, limit: table.met_by(Wish(labels=trust_wish(part))), _trust_words
    ),
    "key": Check(
        lambda table, part, limit: table.met_by(Wish(is_sealed=part.is_sealed)), _key_words
    ),
    "compression": Check(
        lambda table, part, limit: table.met_by(Wish(needs_zstd=part.compression == "zstd")),
        _compression_words,
    ),
    "nodes": Check(_may_have, _nodes_words),
    "memory": Check(
        lambda table, part, limit: table.memory_mib_room[: table.size] >= part.memory_mib,
        _memory_words,
    ),
    "slices": Check(
        lambda table, part, limit: table.slices_held[: table.size] < SLICES_HELD_MAX, _slices_words
    ),
    "health": Check(
        lambda table, part, limit: table.health[: table.size] >= np.float32(limit),
        _measured("health", "", ">="),
    ),
    "temperature": Check(
        lambda table, part, limit: ~(table.temperature_c[: table.size] >= limit),
        _measured("temperature_c", " C", "<"),
    ),
    "cpu": Check(
        lambda table, part, limit: ~(table.cpu_percent[: table.size] >= limit),
        _measured("cpu_percent", " %", "<"),
    ),
    "accelerator_memory": Check(
        lambda table, part, limit: ~(table.accelerator_mib_free[: table.size] <= limit),
        _measured("accelerator_mib_free", " MiB", ">"),
    ),
}
