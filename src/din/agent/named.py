"""Who may reach this node: its gateway, and the nodes that its deployments name.

The gateway never dials: its link is the one that this node opened. PREPARE names every node of a
deployment. Those may open a link, and those alone may send frames of that deployment, each as the
producer that it is on the frame's route. A node that is named no more loses its place a little
later, so that what it accepted before may still leave. One that was thrown out of the cluster loses
it at once and for good, whoever names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from din.domain.deployment import Epoch
from din.domain.trust import Role
from din.flow.seldom import Seldom
from din.wire.messages import Run

RETIRED_MAX: Final = 64
"""Deployments that are gone from here: their late frames are answered, those of strangers not."""
LEAVE_S: Final = 3.0
OUT_MAX: Final = 8192
"""Nodes thrown out of the cluster that are remembered; of more, those told of last."""

Report = Callable[..., None]
OnUnnamed = Callable[[tuple[str, ...]], None]


class Named:
    """One set of node ids per deployment. All calls in the loop's thread."""

    def __init__(self, report: Report) -> None:
        self.gateway_id = ""
        """Whose orders count; empty = nobody's yet."""
        self._report = report
        self._on_unnamed: OnUnnamed = _ignore
        self._on_out: OnUnnamed = _ignore
        self._out: dict[str, None] = {}
        self._loop = asyncio.get_running_loop()
        self._named: dict[Epoch, frozenset[str]] = {}
        self._retired: dict[Epoch, frozenset[str]] = {}
        self._refused = Seldom()

    def connect(self, on_unnamed: OnUnnamed, on_out: OnUnnamed) -> None:
        """Who hears of nodes that no deployment names any more, and of those thrown out."""
        self._on_unnamed, self._on_out = on_unnamed, on_out

    def name(self, epoch: Epoch, node_ids: Iterable[str]) -> None:
        """These are the nodes of a deployment now."""
        before, now = self._named.get(epoch, frozenset()), frozenset(node_ids)
        self._retired.pop(epoch, None)
        self._named[epoch] = before | now
        if before - now:
            self._loop.call_later(LEAVE_S, self._narrow, epoch, before | now, now)

    def retire(self, epoch: Epoch) -> None:
        """Nothing of a deployment is on this node any more."""
        names = self._named.pop(epoch, None)
        if names is None:
            return
        self._retired[epoch] = names
        while len(self._retired) > RETIRED_MAX:
            del self._retired[next(iter(self._retired))]
        self._tell_unnamed(names)

    def throw_out(self, node_ids: Iterable[str]) -> None:
        """These were revoked: nothing goes to them or comes from them any more."""
        told = tuple(node_ids)
        for node_id in told:
            self._out.pop(node_id, None)
            self._out[node_id] = None
        while len(self._out) > OUT_MAX:
            del self._out[next(iter(self._out))]
        self._on_out(told)

    def is_out(self, node_id: str) -> bool:
        """Whether a node was thrown out of the cluster."""
        return node_id in self._out

    def role_of(self, node_id: str) -> Role:
        """What the certificate of somebody with this id must name."""
        return "gateway" if node_id == self.gateway_id else "node"

    def refusal_of_link(self, node_id: str, session: int) -> str:
        """Why a link that a peer dialled is not taken; empty when it is."""
        del session
        if node_id == self.gateway_id:
            # Where links are plain, whoever reaches our port could say this id and give orders.
            return "this node dials its gateway, and takes no link that says to be from there"
        if node_id in self._out:
            return f"node {node_id!r:.40} was revoked"
        if node_id and self._is_named(node_id):
            return ""
        return f"no deployment on this node names {node_id!r:.40}"

    def may_send(self, peer_id: str, run: Run) -> bool:
        """Whether a frame may come from this peer."""
        if peer_id == self.gateway_id:
            return True
        epoch, nodes = run.route.epoch, run.route.nodes
        names = self._named.get(epoch) or self._retired.get(epoch, frozenset())
        return (
            peer_id in names
            and peer_id not in self._out
            and run.origin == self.gateway_id
            and 0 <= run.producer < len(nodes)
            and nodes[run.producer] == peer_id
        )

    def refuse(self, peer_id: str, run: Run) -> None:
        """Count a frame that was dropped."""
        frames = self._refused.count(self._loop.time() * 1000)
        if frames:
            self._report(
                "frame_refused",
                peer=peer_id,
                deployment=run.route.epoch.deployment,
                slice=run.slice_index,
                reason="the peer is not named as its producer",
                frames=frames,
            )

    def _narrow(self, epoch: Epoch, before: frozenset[str], now: frozenset[str]) -> None:
        if self._named.get(epoch) == before:  # else it was said anew meanwhile
            self._named[epoch] = now
            self._tell_unnamed(before - now)

    def _is_named(self, node_id: str) -> bool:
        return any(node_id in names for names in self._named.values())

    def _tell_unnamed(self, names: Iterable[str]) -> None:
        gone = tuple(each for each in names if not self._is_named(each))
        if gone:
            self._on_unnamed(gone)


def _ignore(_: tuple[str, ...]) -> None:
    """Nobody listens yet."""
