"""The gateway's fleet: drives membership, keeps the planner's table, tells the others who comes and
goes.

Membership decides (`din.discovery.membership`); here its orders are carried out, on the event loop
and at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from random import Random
from typing import Final

from msgspec.structs import replace

from din.discovery.admission import Terms, admit
from din.discovery.events import (
    AnswerBeat,
    DispatchFailed,
    DrainRequested,
    EvictSession,
    LinkClosed,
    LinkOpened,
    MembershipEvent,
    MembershipInstruction,
    NodeLeft,
    NodeRegistered,
    PublishChanged,
    PublishForgotten,
    PublishJoined,
    PublishLost,
    PublishUpdated,
    RecordHealth,
    RecordScore,
    RefuseNode,
    RenameNode,
    SliceFailed,
    UndrainRequested,
    WarnOfNode,
    Woke,
)
from din.discovery.membership import Member, Membership
from din.domain.node import FleetNode, NodeHealth, NodeId, NodeProfile
from din.domain.plan import Plan
from din.errors import Conflict
from din.gateway.deployment.drains import DrainBook
from din.gateway.deployment.hearing import FleetListener
from din.gateway.deployment.holding import Known
from din.gateway.nodes.derating import DeratingNews
from din.gateway.nodes.samples import Samples
from din.gateway.registration.cutting import wished_nodes
from din.gateway.registration.names import id_of
from din.placement.layout import LinkGuess
from din.placement.planner import plan_deployment
from din.placement.policy import Policy
from din.placement.table import FleetTable
from din.wire.heartbeat import decode_heartbeat, encode_heartbeat_answer
from din.wire.registration import Registration, RegistrationAnswer

BEAT_ORDERS: Final = 2
"""What membership orders after a beat that is no news: its health, and the answer."""

Report = Callable[..., None]
Admitted = Callable[[NodeProfile], NodeProfile]
"""Checks who sent a profile, may change its labels, and may raise."""


class Fleet:
    """Everything about nodes. Implements hearing.FleetFacts."""

    def __init__(
        self,
        membership: Membership,
        policy: Policy,
        drains: DrainBook,
        *,
        terms: Callable[[], Terms],
        clock: Callable[[], float],
        random: Random,
        report: Report,
        is_out: Callable[[str], bool],
    ) -> None:
        """`is_out`: whether a node was thrown out of the cluster."""
        self._is_out = is_out
        self._membership = membership
        self.policy = policy
        self._drains = drains
        self._terms = terms
        self._clock = clock
        self._random = random
        self._report = report
        self._samples = Samples(lambda node_id: self._told().loaded_mib(node_id))
        self._derating = DeratingNews(report, self.name_of)
        self._listener: FleetListener | None = None
        self._scores: dict[NodeId, float] = {}
        self._warnings: dict[NodeId, tuple[str, ...]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms: int | None = None
        self._is_closed = False

    def connect(self, listener: FleetListener) -> None:
        """Who is told. Once, before the first event."""
        self._listener = listener

    def _told(self) -> FleetListener:
        assert self._listener is not None, "connect() comes first"
        return self._listener

    def register(
        self, registration: Registration, admitted: Admitted, skew_ms: int | None
    ) -> RegistrationAnswer:
        """The answer; see `admit` for the skew."""
        profile = admitted(registration.profile)
        registration, terms = replace(registration, profile=profile), self._terms()
        self._warnings.pop(profile.node_id, None)
        answer, orders = admit(self._membership, self._now_ms(), registration, terms, skew_ms)
        self._perform(orders)
        if self._drains.is_leaving(profile.node_id):
            self._handle(DrainRequested(profile.node_id))
        self._arm()
        return answer

    def heartbeat(self, body: bytes, check_sender: Callable[[NodeId], None] | None = None) -> bytes:
        """One beat in, the answer out. Raises UsageError and what `check_sender` raises."""
        beat = decode_heartbeat(body)
        if check_sender is not None:
            check_sender(beat.node_id)
        orders = self._membership.handle(int(self._clock()), beat)
        first, answer = orders[0], orders[-1]
        assert isinstance(answer, AnswerBeat), "every beat is answered, after what follows from it"
        if len(orders) == BEAT_ORDERS and isinstance(first, RecordHealth):
            # Beats come by the ten thousand a second, and by itself none makes a deadline earlier.
            self._record(first.node_id, first.health, first.health_score)
        elif len(orders) > 1:
            self._perform(orders)
            self._arm()
        return encode_heartbeat_answer(answer.answer)

    def link_opened(self, node_id: NodeId, session: int, link_id: int) -> None:
        """A node dialled."""
        self._handle(LinkOpened(node_id, session, link_id))

    def link_closed(
        self, node_id: NodeId, session: int, link_id: int, reason: str, *, is_orderly: bool
    ) -> None:
        """A link broke or was closed."""
        self._handle(LinkClosed(node_id, session, link_id, reason, is_orderly))

    def session_of(self, node_id: NodeId) -> int | None:
        """The session that is registered and not lost."""
        member = self._membership.member(node_id)
        return member.profile.session if member and member.status != "lost" else None

    def refusal_of_link(self, node_id: str, session: int) -> str:
        """Why a link of this session is not taken; empty when it is registered and not lost."""
        found = self.session_of(NodeId(node_id))
        if found is None:
            return f"node {node_id!r:.40} is not registered here"
        if found != session:
            return f"session {session} of node {node_id!r:.40} is not the registered one"
        return ""

    def dispatch_failed(self, node_id: NodeId, reason: str, began_ms: float) -> None:
        """A node did not take or not answer a frame of an attempt that began then."""
        member = self._membership.member(node_id)
        if member is not None:
            session = member.profile.session
            self._handle(DispatchFailed(node_id, session, reason, int(began_ms)))

    def slice_failed(self, node_id: NodeId) -> None:
        """A node answered with a failure."""
        member = self._membership.member(node_id)
        if member is not None:
            self._handle(SliceFailed(node_id, member.profile.session))

    def left(self, node_id: str, session: int, reason: str = "was stopped") -> None:
        """A node goes, or is sent away. Raises NotFound, or Conflict when a newer session lives."""
        member = self.find(node_id)
        if member.profile.session != session:
            raise Conflict(
                f"node {member.profile.name} is in session {member.profile.session}, not {session}",
                hint="only the living session can say good-bye",
            )
        self._handle(NodeLeft(member.profile.node_id, session, reason))

    def relabel(self, node_id: NodeId, labels: dict[str, str]) -> None:
        """A node has other labels now; one that is not here has them when it is back."""
        member = self._membership.member(node_id)
        if member is not None and member.status != "lost":
            self._handle(NodeRegistered(replace(member.profile, labels=labels)))

    def drain(self, node_id: NodeId) -> None:
        """A node stands in the book of drains now: nothing new goes there; nothing at all when it
        is forced."""
        self._handle(DrainRequested(node_id))
        if self._drains.is_forced(node_id):
            self._unusable(node_id, "drained by force", is_final=True)

    def undrain(self, node_id: NodeId) -> None:
        """A node stands in the book of drains no more."""
        self._handle(UndrainRequested(node_id))

    def members(self) -> tuple[Member, ...]:
        """All nodes, by name."""
        return tuple(sorted(self._membership.members(), key=lambda each: each.profile.name))

    def fleet_nodes(self) -> tuple[FleetNode, ...]:
        """All nodes as the planner sees them."""
        return tuple(self._fleet_node(member) for member in self.members())

    def find(self, name_or_id: str) -> Member:
        """By name, id or unique beginning of an id. Raises NotFound or Conflict."""
        members = self._membership.members()
        names: dict[str, str] = {each.profile.node_id: each.profile.name for each in members}
        where = f"in cluster {self._terms().cluster!r}"
        node_id = id_of(name_or_id, names, where, self._is_out)
        found = self._membership.member(NodeId(node_id))
        assert found is not None, "its id was among the members"
        return found

    def warnings_of(self, node_id: NodeId) -> tuple[str, ...]:
        """What a node was told when it registered, about itself."""
        return self._warnings.get(node_id, ())

    def name_of(self, node_id: str) -> str:
        """A node's name, or its id when it is unknown."""
        return self._membership.name(NodeId(node_id)) or node_id

    def health_of(self, node_id: NodeId) -> float | None:
        """Health score of a routable node, else None."""
        return self._scores.get(node_id)

    def is_routable(self, node_id: NodeId) -> bool:
        """See FleetFacts."""
        return node_id in self._scores

    def is_known(self, node_id: NodeId) -> bool:
        """Whether a node is registered, or was until lately."""
        return self._membership.member(node_id) is not None

    def is_member(self, node_id: NodeId) -> bool:
        """See FleetFacts."""
        return self.session_of(node_id) is not None and not self._drains.is_forced(node_id)

    def addresses(self, node_id: NodeId) -> tuple[str, ...]:
        """See FleetFacts."""
        member = self._membership.member(node_id)
        return member.profile.addresses if member is not None else ()

    def plan(
        self, known: Known, *, is_explained: bool = False, slices: Collection[int] | None = None
    ) -> Plan:
        """See FleetFacts; `slices` narrows it to some indexes, as of the raw shape."""
        return plan_deployment(
            [part for part in known.slices if slices is None or part.index in slices],
            known.record.partition.adapted_edges or known.record.partition.edges,
            self._samples.table(),
            self.policy,
            random=self._random,
            model_id=known.model_id,
            version=known.version,
            times=self._told().measured_ms,
            links=LinkGuess(undialable=known.undialable),
            replicas=1 if is_explained else known.replicas,
            existing={index: nodes for index, nodes in known.existing.items() if nodes},
            excluded=known.excluded,
            leaving=known.leaving,
            wished=wished_nodes(known.record.choice),
            is_explained=is_explained,
        )

    def table(self) -> FleetTable:
        """All nodes as the planner sees them now; not to be changed."""
        return self._samples.table()

    def memory_changed(self) -> None:
        """See FleetFacts."""
        for member in self._membership.members():
            if member.profile.node_id in self._samples:
                self._samples.put(self._fleet_node(member))

    def _handle(self, event: MembershipEvent) -> tuple[MembershipInstruction, ...]:
        try:
            orders = self._membership.handle(self._now_ms(), event)
            self._perform(orders)
        finally:
            self._arm()  # whatever happened: without the timer no node would ever be lost again
        return orders

    def _perform(self, orders: tuple[MembershipInstruction, ...]) -> None:
        for order in orders:
            match order:
                case RecordHealth():
                    self._record(order.node_id, order.health, order.health_score)
                case AnswerBeat():
                    pass
                case PublishJoined(profile=profile):
                    self._report("node joined", node=profile.name, id=profile.node_id)
                    self.look_at(profile.node_id)
                case PublishUpdated(profile=profile):
                    self.look_at(profile.node_id)
                    self._told().node_moved(profile.node_id)
                case PublishChanged():
                    self._changed(order)
                case PublishLost(node_id=node_id, reason=reason):
                    self._report("node lost", node=self.name_of(node_id), reason=reason)
                    self._unusable(node_id, reason, is_final=True)
                    self.look_at(node_id)
                case PublishForgotten(node_id=node_id):
                    self._warnings.pop(node_id, None)
                    self._derating.forget(node_id)
                    if (name := self._samples.remove(node_id)) is not None:
                        self._told().forgotten(name)
                case EvictSession(node_id=node_id, session=session, reason=reason):
                    self._evict(node_id, session, reason)
                case RecordScore(node_id=node_id, health_score=score):
                    if node_id in self._scores:
                        self._scores[node_id] = score
                    self._samples.set_score(node_id, score)
                case RenameNode(node_id=node_id) | WarnOfNode(node_id=node_id):
                    self._warnings[node_id] = (*self.warnings_of(node_id), order.warning)
                    self._report("node warning", id=node_id, warning=order.warning)
                case RefuseNode(node_id=node_id, reason=reason):
                    self._report("node refused", id=node_id, reason=reason)

    def _changed(self, order: PublishChanged) -> None:
        node_id = order.node_id
        self.look_at(node_id)
        self._report(
            "node status", node=self.name_of(node_id), status=order.status, reason=order.reason
        )
        is_forced_out = order.status == "draining" and self._drains.is_forced(node_id)
        if order.status in ("ready", "draining") and not is_forced_out:
            member = self._membership.member(node_id)
            self._scores[node_id] = member.health_score if member is not None else 1.0
            self._told().node_usable(node_id)
        else:
            self._unusable(node_id, order.reason, is_final=is_forced_out)

    def _evict(self, node_id: NodeId, session: int, reason: str) -> None:
        member = self._membership.member(node_id)
        if member is None or member.status != "ready" or member.profile.session == session:
            self._unusable(node_id, reason, is_final=False)
        self._told().evicted(node_id, session, reason)

    def _unusable(self, node_id: NodeId, reason: str, *, is_final: bool) -> None:
        was_routable = self._scores.pop(node_id, None) is not None
        if was_routable or is_final:
            self._told().node_unusable(node_id, reason, is_final=is_final)

    def look_at(self, node_id: NodeId) -> None:
        """Something about a node is new: the planner learns it."""
        member = self._membership.member(node_id)
        if member is not None:
            self._samples.put(self._fleet_node(member))

    def _record(self, node_id: NodeId, health: NodeHealth, score: float) -> None:
        if node_id in self._scores:
            self._scores[node_id] = score
        self._samples.take(node_id, health, score)
        self._derating.look(node_id, health)

    def _fleet_node(self, member: Member) -> FleetNode:
        node_id = member.profile.node_id
        return FleetNode(
            profile=member.profile,
            health=self._samples.capped(member.health, node_id, member.profile.memory_mib),
            status=member.status,
            health_score=member.health_score,
            seen_ms=member.seen_ms,
            memory_mib_reserved=self._told().promised_mib(node_id),
            slices_held=self._told().slices_held(node_id),
            foreign=self._told().foreign_behind(node_id),
            takes_grants=self._told().takes_grants(node_id),
        )

    def _now_ms(self) -> int:
        return int(self._clock())

    def _arm(self) -> None:
        wakeup_ms = self._membership.next_wakeup_ms()
        if wakeup_ms == self._armed_ms and self._timer is not None:
            return  # beats come by the thousand and move no timer
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._armed_ms = None, wakeup_ms
        if wakeup_ms is not None and not self._is_closed:
            delay_s = max(wakeup_ms - self._clock(), 0.0) / 1000 + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._handle(Woke())

    def close(self) -> None:
        """Stop the timer for good."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
