"""What a choice of cuts is about: nodes as places for slices, and what is asked of the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from din.domain.node import NodeId
from din.domain.strategy import Objective

NODES_MAX: Final = 100
SLICES_MAX_DEFAULT: Final = 16


class Device(Struct, frozen=True, kw_only=True):
    """A node as a place for slices."""

    node_id: NodeId
    name: str
    device_class: str
    """Nodes of one class take the same time; the key of measured profiles."""
    gflops: float
    """Assumed, for what was never measured."""
    room_mib: float
    is_trusted: bool = False
    watts: float | None = None
    """Measured; None = it has no meter."""
    backends: tuple[str, ...] = ("onnxruntime",)
    machine: str = ""
    """Devices of one share its processor; empty = not known to share one."""
    processor_share: float = 1.0
    """Above 0: what it takes of that while it is busy."""


class RangeRule(Struct, frozen=True, kw_only=True):
    """Where the operators from place `first` to place `last` may lie."""

    first: int
    last: int
    allowed: frozenset[NodeId] | None = None
    """None = anywhere."""
    forbidden: frozenset[NodeId] = frozenset()
    is_sensitive: bool = False
    """Only on trusted nodes."""
    backend: str | None = None
    """Engine that runs them."""
    ends_slices: bool = True
    """A slice holds operators for which the same rules hold; False = one such operator is enough to
    make a rule hold for its whole slice."""

    def permits(self, device: Device) -> bool:
        """Whether a node may have them."""
        if self.is_sensitive and not device.is_trusted:
            return False
        if self.backend is not None and self.backend not in device.backends:
            return False
        is_allowed = self.allowed is None or device.node_id in self.allowed
        return is_allowed and device.node_id not in self.forbidden


class CutWishes(Struct, frozen=True, kw_only=True):
    """What the strategy asks of the choice."""

    objective: Objective = "latency"
    slices_max: int = SLICES_MAX_DEFAULT
    memory_mib_max: int | None = None
    """Of one node, whatever room it has."""
    rules: tuple[RangeRule, ...] = ()


def barred_by(rule: RangeRule, devices: Sequence[Device]) -> list[bool]:
    """For each device whether the rule keeps it out."""
    return [not rule.permits(each) for each in devices]
