"""Nodes of one machine share its processor: what runs on two of them takes turns or splits it.

`shares[i, j]` says it all: which share of the processor that node i has is taken while node j is
busy. It is 0 on another machine, and 1 where j keeps every core busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from din.placement.chain import Chain, Matrix, Numbers, Way
from din.placement.places import Device

NAMES_SHOWN_MAX: Final = 8
ROUNDING: Final = 1e-9


def shares_of(devices: Sequence[Device]) -> Matrix:
    """Devices by devices: see above. One of which no machine is known has one by itself."""
    keys = [each.machine or f"node {each.node_id}" for each in devices]
    numbers = np.unique(keys, return_inverse=True)[1]
    taken = np.array([each.processor_share for each in devices])
    return np.where(numbers[:, None] == numbers, taken[None, :], 0.0)


def leaders_of(shares: Matrix) -> Numbers:
    """Of each node the first that is on its machine: the same number, the same machine."""
    return (shares > 0).argmax(axis=1)


def loads_of(shares: Matrix, busy_ms: Matrix) -> Matrix:
    """Milliseconds of each node's processor that one request takes."""
    return shares @ busy_ms


def paced(chain: Chain, way: Way) -> Way:
    """A pipeline's way, with the time between two answers that the processors allow."""
    if chain.shares is None:
        return way
    busy = np.zeros(chain.nodes)
    np.add.at(busy, list(way.nodes), chain.cost[np.arange(chain.blocks), list(way.nodes)])
    cost = max(way.cost, float(loads_of(chain.shares, busy).max()))
    return Way(way.nodes, cost, way.is_exact)


def least_pace(chain: Chain, machines: int) -> float:
    """No way over these machines has less time between two answers."""
    if chain.shares is None:
        return 0.0
    return float((chain.cost * np.diag(chain.shares)).min(axis=1).sum()) / machines


class Turns:
    """How many nodes of a machine can be busy at once, and when one more can."""

    def __init__(self, shares: Matrix) -> None:
        self._leaders = leaders_of(shares)
        slots = np.floor(1 / shares.max(axis=1) + ROUNDING).astype(int).clip(min=1)
        self._until = {
            leader: [0.0] * min(int(slots[leader]), len(shares))
            for leader in set(self._leaders.tolist())
        }

    def free_ms(self) -> Matrix:
        """By node: when its machine has a turn for it."""
        return np.array([min(self._until[leader]) for leader in self._leaders.tolist()])

    def take(self, node: int, until_ms: float) -> None:
        """The node is busy until then."""
        until = self._until[int(self._leaders[node])]
        until[until.index(min(until))] = until_ms


def sharing_notes(devices: Sequence[Device]) -> Iterator[str]:
    """Which devices cannot all be busy at once, in words."""
    shares = shares_of(devices)
    leaders = leaders_of(shares)
    for leader in dict.fromkeys(leaders.tolist()):
        members = np.flatnonzero(leaders == leader).tolist()
        if len(members) < 2 or float(shares[leader].sum()) <= 1 + ROUNDING:
            continue
        names = ", ".join(devices[each].name for each in members[:NAMES_SHOWN_MAX])
        more = len(members) - NAMES_SHOWN_MAX
        names += f" and {more} more" if more > 0 else ""
        yield (
            f"{names} are on one machine and share its processor: for throughput their times add up"
        )
