"""Policies: which nodes may take a slice at all, and which of those is best.

A policy is a value; changing one is making another with a higher version. Three ship:

    weighted-least-load          the default: (n+1) * t * (1 + 0.5*(1-h)), CPU load as a weight
    seed-strict                  the same, and CPU < 30 % and accelerator memory free > 1.5 GB
    weighted-least-load-literal  n * t * (1 + 0.5*(1-h)) as first published: an idle node scores 0
                                 however sick it is, so it is here for comparison only

A limit on something measured holds where it was measured: unknown is neither good nor bad.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final, Literal

from msgspec import Struct

from din.errors import NotFound

ConstraintName = Literal[
    "status",
    "backend",
    "operators",
    "device_type",
    "labels",
    "trust",
    "key",
    "compression",
    "nodes",
    "memory",
    "slices",
    "health",
    "temperature",
    "cpu",
    "accelerator_memory",
]

HEALTH_MIN: Final = 0.3
TEMPERATURE_C_MAX: Final = 75.0
STRICT_CPU_PERCENT_MAX: Final = 30.0
STRICT_ACCELERATOR_MIB_MIN: Final = 1536.0


class Constraint(Struct, frozen=True):
    """One hard condition. `limit` is in the unit of its name; None where the slice sets it."""

    name: ConstraintName
    limit: float | None = None


class Weights(Struct, frozen=True, kw_only=True):
    """How load, health and time become one score; the smallest wins."""

    penalty: float = 0.5
    """How much a node without health is worse: 1 + penalty * (1 - health)."""
    cpu: float = 0.5
    """How much a node at 100 % CPU is worse: 1 + cpu * load. Unknown counts as half loaded."""
    queue_offset: int = 1
    """Added to the queue length, so that an idle node does not score 0."""


class Policy(Struct, frozen=True, kw_only=True):
    """Name, version, hard constraints, weights."""

    name: str
    version: int = 1
    constraints: tuple[Constraint, ...]
    weights: Weights = Weights()

    def limit_of(self, name: ConstraintName) -> float | None:
        """The limit of a constraint, or None where the policy does not have it."""
        for constraint in self.constraints:
            if constraint.name == name:
                return constraint.limit
        return None


_BASE: Final = (
    Constraint("status"),
    Constraint("backend"),
    Constraint("operators"),
    Constraint("device_type"),
    Constraint("labels"),
    Constraint("trust"),
    Constraint("key"),
    Constraint("compression"),
    Constraint("nodes"),
    Constraint("memory"),
    Constraint("slices"),
    Constraint("health", HEALTH_MIN),
    Constraint("temperature", TEMPERATURE_C_MAX),
)

WEIGHTED_LEAST_LOAD: Final = Policy(name="weighted-least-load", constraints=_BASE)
SEED_STRICT: Final = Policy(
    name="seed-strict",
    constraints=(
        *_BASE,
        Constraint("cpu", STRICT_CPU_PERCENT_MAX),
        Constraint("accelerator_memory", STRICT_ACCELERATOR_MIB_MIN),
    ),
)
WEIGHTED_LEAST_LOAD_LITERAL: Final = Policy(
    name="weighted-least-load-literal",
    constraints=_BASE,
    weights=Weights(cpu=0.0, queue_offset=0),
)
POLICIES: Final[dict[str, Policy]] = {
    policy.name: policy
    for policy in (WEIGHTED_LEAST_LOAD, SEED_STRICT, WEIGHTED_LEAST_LOAD_LITERAL)
}


def policy_of(name: str) -> Policy:
    """A policy by its name. Raises NotFound that names the nearest one."""
    policy = POLICIES.get(name)
    if policy is None:
        near = get_close_matches(name, POLICIES, n=1) or sorted(POLICIES)
        raise NotFound(
            f"there is no policy {name!r}",
            hint=f"policies are {', '.join(POLICIES)}; try {near[0]}",
        )
    return policy
