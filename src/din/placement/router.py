"""The way of one request: for each slice the replica that is expected to answer first.

The hot path, in pure Python: a handful of replicas per slice is decided in microseconds, without an
array and without I/O. The score is the default policy's, (n+1) * t * (1 + penalty*(1-h)), with n =
requests of this gateway under way in the replica and t its sliding mean; slices are independent, so
the best of each is the best of all. Close scores are settled in favour of the node that the tensors
are on already, then of a node on the gateway's host, then by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from din.domain.node import NodeId
from din.errors import CannotPlace

if TYPE_CHECKING:
    from random import Random

PENALTY: Final = 0.5
NEAR: Final = 1.05
"""Scores up to 5 % above the best are as good: the means that they are made of scatter more."""
COLD_MS: Final = 1.0
"""Stands for a time when no replica of a slice has run yet: all are equal then, whatever it is."""


class Candidate(NamedTuple):
    """A ready replica as it stands now."""

    node_id: NodeId
    inflight: int
    mean_ms: float | None
    """None = has not run yet: counts as the mean of its fellows."""
    health: float = 1.0
    is_local: bool = False


def choose_route(
    offered: Sequence[Sequence[Candidate]],
    random: Random,
    *,
    excluded: Collection[str] = (),
    names: Sequence[str] = (),
) -> tuple[NodeId, ...]:
    """One node for each of the slices offered, in their order.

    `excluded` nodes take no part; `names` are the slices' names for the error.
    Raises CannotPlace for a slice without a candidate.
    """
    chosen: list[NodeId] = []
    before = ""
    for position, candidates in enumerate(offered):
        if excluded:
            candidates = [each for each in candidates if each.node_id not in excluded]  # noqa: PLW2901
        if not candidates:
            raise _nobody(position, names, excluded)
        before = (
            candidates[0].node_id if len(candidates) == 1 else _best(candidates, before, random)
        )
        chosen.append(before)
    return tuple(chosen)


def _best(candidates: Sequence[Candidate], before: str, random: Random) -> NodeId:
    cold = None
    scores: list[float] = []
    for _, inflight, mean_ms, health, _ in candidates:
        if mean_ms is None:
            mean_ms = cold = _mean(candidates) if cold is None else cold  # noqa: PLW2901
        scores.append((inflight + 1) * mean_ms * (1.0 + PENALTY * (1.0 - health)))
    limit = min(scores) * NEAR
    near = [each for each, score in zip(candidates, scores, strict=True) if score <= limit]
    if len(near) == 1:
        return near[0].node_id
    for each in near:
        if each.node_id == before:
            return each.node_id
    local = [each for each in near if each.is_local] or near
    return local[0].node_id if len(local) == 1 else random.choice(local).node_id


def _mean(candidates: Sequence[Candidate]) -> float:
    known = [each.mean_ms for each in candidates if each.mean_ms is not None]
    return sum(known) / len(known) if known else COLD_MS


def _nobody(position: int, names: Sequence[str], excluded: Collection[str]) -> CannotPlace:
    name = names[position] if position < len(names) else f"number {position}"
    without = f" besides the {len(excluded)} left out of this attempt" if excluded else ""
    return CannotPlace(
        f"slice {name!r} has no ready replica{without}",
        hint="`din model inspect` shows where its replicas are and why they are not ready",
    )
