"""What people see of a decision: the chosen, the expected, and why each other was not chosen."""

from __future__ import annotations

from msgspec import Struct

from din.domain.node import NodeId


class Placement(Struct, frozen=True, kw_only=True):
    """One slice on one node, with the reason."""

    slice_index: int
    slice_name: str
    node_id: NodeId
    node: str
    """The node's name."""
    reason: str
    """A word of the policy: lowest_load, only_candidate, pinned_device_type, lowest_temperature;
    `chosen_with_cuts` where DIN chose the cuts for it."""
    expected_ms: float | None = None
    """None until the slice has run there."""
    memory_mib: int = 0


class Rejection(Struct, frozen=True, kw_only=True):
    """Why one node was not chosen for one slice."""

    slice_index: int
    node_id: NodeId
    node: str
    constraint: str
    """memory, backend, device_type, labels, temperature, status, integers, score, ..."""
    observed: str
    required: str
    detail: str = ""


class RejectionCount(Struct, frozen=True, kw_only=True):
    """Rejections of one constraint, with at most 4 examples."""

    constraint: str
    count: int
    examples: tuple[Rejection, ...]


class Plan(Struct, frozen=True, kw_only=True):
    """The outcome of planning: dry run and run return this same type."""

    plan_id: str
    model_id: str
    version: str
    placements: tuple[Placement, ...]
    rejections: tuple[Rejection, ...] = ()
    """The full list, only for dry run and `din plan`; else see `rejection_counts`."""
    rejection_counts: tuple[RejectionCount, ...] = ()
    relays: tuple[tuple[str, str], ...] = ()
    """Pairs of node names whose tensors the gateway relays: the first cannot dial the other."""
    expected_ms: float | None = None
    policy: str = "weighted-least-load"
    policy_version: int = 1
    is_split_refused: bool = False
    """True when one node alone is expected to be faster than the split that was asked for."""
    notes: tuple[str, ...] = ()


REJECTION_EXAMPLES_MAX = 4
