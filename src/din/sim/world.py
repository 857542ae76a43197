"""The simulated world: machines, a network that loses things, faults, load, and the promises that
are checked after every event.

Promises
    no request goes to a node that membership does not hold ready
    a node heard of within 9 s is not lost; without faults nobody is suspected at all
    a killed node is lost within 9 s + one interval, unless it came back
    a deployment lacks a slice only where the planner was asked and no node can take that slice
    table and membership say the same of every node
    a request fails only where its model had no place
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import msgspec

from din.discovery.events import (
    AnswerBeat,
    DispatchFailed,
    EvictSession,
    LinkClosed,
    LinkOpened,
    MembershipEvent,
    MembershipInstruction,
    NodeRegistered,
    PublishChanged,
    PublishLost,
    Woke,
)
from din.domain.node import NodeHealth, NodeId
from din.errors import CannotPlace
from din.flow.retry import Outcome, decide_retry
from din.sim.control import Control, SimDeployment
from din.sim.node import SimNode
from din.sim.scenario import Counts, InvariantBroken, Report, Scenario
from din.sim.timers import Timers
from din.wire.heartbeat import Heartbeat

LATENCY_MS: Final = (1, 30)
LOAD_MS: Final = (50, 500)
REQUEST_DEADLINE_MS: Final = 5_000
REQUEST_WAIT_MS: Final = 50
FAILED_DISPATCH_MS: Final = 20
SWEEP_EVENTS: Final = 1_000
"""Table and membership are compared as a whole every so many events, and node by node always."""


class World:
    """Everything outside the gateway. One run of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = Random(scenario.seed)
        self.timers = Timers()
        self.counts = Counts()
        self.control = Control(scenario, Random(self.random.getrandbits(64)), self.counts)
        self.control.evicted = self._on_evicted
        self.control.loading = self._on_loading
        self.nodes = {
            each.node_id: each
            for each in (
                SimNode(number, Random(self.random.getrandbits(64)))
                for number in range(scenario.nodes)
            )
        }
        self._log = hashlib.sha256()
        self._encode = msgspec.msgpack.Encoder().encode
        self._schedule = self.control.membership.schedule

    def run(self) -> Report:
        """Run to the end. Raises InvariantBroken."""
        end_ms = self.scenario.seconds * 1_000
        while True:
            timer_ms = self.timers.next_ms()
            wakeup_ms = self.control.membership.next_wakeup_ms()
            due = [each for each in (timer_ms, wakeup_ms) if each is not None]
            if not due or min(due) > end_ms:
                break
            if wakeup_ms is not None and (timer_ms is None or wakeup_ms <= timer_ms):
                self.timers.advance(wakeup_ms)
                self.tell(Woke())
            else:
                self.timers.run_next()
        self._sweep()
        return Report(
            scenario=self.scenario,
            counts=self.counts,
            digest=self._log.hexdigest(),
            ready=sum(self.control.is_ready(node_id) for node_id in self.nodes),
        )

    def tell(self, event: MembershipEvent) -> tuple[MembershipInstruction, ...]:
        """Give the gateway one event, write both into the log, and check every promise."""
        self.counts.events += 1
        now_ms = self.timers.now_ms
        orders = self.control.handle(now_ms, event)
        self._write(now_ms, event, *orders)
        for order in orders:
            self._check_order(order)
        if self.control.repair(now_ms):
            self._check_deployments()
        if self.counts.events % SWEEP_EVENTS == 0:
            self._sweep()
        return orders

    def _write(self, now_ms: int, *entries: object) -> None:
        named = [(type(entry).__name__, entry) for entry in entries]
        self._log.update(self._encode((now_ms, named)))

    # -- machines -------------------------------------------------------------------------------

    def start(self, node: SimNode) -> None:
        """A machine starts, or starts again, as a new session."""
        if node.is_alive:
            return
        node.is_alive = True
        node.session += 1
        node.counter = 0
        self._later(partial(self._register, node, node.session))
        delay_ms = self._schedule.first_delay_ms(node.random)
        self.timers.after(delay_ms, partial(self._beat, node, node.session))

    def kill(self, node: SimNode, *, is_loud: bool) -> None:
        """A machine dies; a loud death closes its link, a silent one (power) does not."""
        if not node.is_alive:
            return
        node.is_alive = False
        node.kills += 1
        self.counts.kills += 1
        if is_loud and not node.is_silent:
            event = LinkClosed(node.node_id, node.session, node.link_id, "connection reset")
            self._later(partial(self.tell, event))
        deadline_ms = self._schedule.lost_after_ms + self._schedule.interval_ms
        self.timers.after(deadline_ms, partial(self._check_found, node, node.kills))

    def silence(self, node: SimNode, *, is_silent: bool) -> None:
        """Cut a machine off, or let it be heard again."""
        node.is_silent = is_silent

    def _later(self, call: Callable[[], object]) -> None:
        self.timers.after(self.random.randint(*LATENCY_MS), call)

    def _is_heard(self, node: SimNode, session: int) -> bool:
        return node.is_alive and not node.is_silent and node.session == session

    def _register(self, node: SimNode, session: int) -> None:
        if not node.is_alive or node.session != session:
            return
        if node.is_silent:
            self.timers.after(1_000, partial(self._register, node, session))
            return
        node.heard_ms = self.timers.now_ms
        self.tell(NodeRegistered(node.profile()))
        node.link_id += 1
        self._later(partial(self._open_link, node, session, node.link_id))

    def _open_link(self, node: SimNode, session: int, link_id: int) -> None:
        if self._is_heard(node, session):
            node.heard_ms = self.timers.now_ms
            self.tell(LinkOpened(node.node_id, session, link_id))

    def _beat(self, node: SimNode, session: int) -> None:
        if not node.is_alive or node.session != session:
            return
        node.counter += 1
        health = node.sample()
        if not node.is_silent and node.random.random() >= self.scenario.loss:
            self._later(partial(self._deliver, node, session, node.counter, health))
        delay_ms = self._schedule.next_delay_ms(node.random)
        self.timers.after(delay_ms, partial(self._beat, node, session))

    def _deliver(self, node: SimNode, session: int, counter: int, health: NodeHealth) -> None:
        if not self._is_heard(node, session):
            return
        self.counts.beats += 1
        orders = self.tell(Heartbeat(node.node_id, session, counter, health))
        answers = [order.answer for order in orders if isinstance(order, AnswerBeat)]
        if answers == ["register again"]:
            self._later(partial(self._register, node, session))
        else:
            node.heard_ms = self.timers.now_ms

    def _on_evicted(self, order: EvictSession) -> None:
        """The gateway closed the session's links; a machine that hears of it opens a new one when
        it is told to register again."""
        self._write(self.timers.now_ms, order)

    def _on_loading(self, deployment: SimDeployment, index: int, node_id: NodeId) -> None:
        done = partial(self._loaded, deployment, index, node_id, self.nodes[node_id].session)
        self.timers.after(self.random.randint(*LOAD_MS), done)

    def _loaded(self, deployment: SimDeployment, index: int, node_id: NodeId, session: int) -> None:
        if self._is_heard(self.nodes[node_id], session):
            self.control.loaded(deployment, index, node_id)
        elif self.control.is_ready(node_id) and self.control.session_of(node_id) == session:
            now_ms = self.timers.now_ms
            self.tell(DispatchFailed(node_id, session, "PREPARE was not answered", now_ms))

    # -- requests -------------------------------------------------------------------------------

    def request(self, deployment: SimDeployment) -> None:
        """A client asks."""
        self.counts.requests += 1
        self._attempt(deployment, self.timers.now_ms + REQUEST_DEADLINE_MS, 0, frozenset())

    def _attempt(
        self, deployment: SimDeployment, deadline_ms: int, attempts: int, failed: frozenset[NodeId]
    ) -> None:
        try:
            nodes = self.control.route(deployment, set(failed))
        except CannotPlace:
            self._wait(deployment, deadline_ms, attempts)
            return
        for part, node_id in zip(deployment.slices, nodes, strict=True):
            self._check_routable(node_id)
            known = self.control.session_of(node_id)
            if not self._is_heard(self.nodes[node_id], known):
                self._blame(node_id, known)
                self._try_again(deployment, deadline_ms, attempts + 1, failed | {node_id})
                return
            elapsed_ms = part.memory_mib / 20 / self.nodes[node_id].speed
            self.control.timeouts.observe(part.slice_id, node_id, elapsed_ms)
        self.counts.answered += 1

    def _blame(self, node_id: NodeId, session: int) -> None:
        self.tell(DispatchFailed(node_id, session, "no answer", self.timers.now_ms))

    def _try_again(
        self, deployment: SimDeployment, deadline_ms: int, attempts: int, failed: frozenset[NodeId]
    ) -> None:
        remaining_ms = deadline_ms - self.timers.now_ms - FAILED_DISPATCH_MS
        outcome = Outcome(attempts=attempts, remaining_ms=remaining_ms, is_retryable=True)
        if not decide_retry(outcome).is_allowed:
            self._give_up(deployment)
            return
        self.counts.retries += 1
        again = partial(self._attempt, deployment, deadline_ms, attempts, failed)
        self.timers.after(FAILED_DISPATCH_MS, again)

    def _wait(self, deployment: SimDeployment, deadline_ms: int, attempts: int) -> None:
        if self.timers.now_ms + REQUEST_WAIT_MS > deadline_ms:
            self._give_up(deployment)
            return
        again = partial(self._attempt, deployment, deadline_ms, attempts, frozenset[NodeId]())
        self.timers.after(REQUEST_WAIT_MS, again)

    def _give_up(self, deployment: SimDeployment) -> None:
        self.counts.unanswered += 1
        refused_ms = deployment.refused_ms
        if refused_ms is None or self.timers.now_ms - refused_ms > REQUEST_DEADLINE_MS:
            self._broken(f"a request to deployment {deployment.number} found no answer in time")

    # -- promises -------------------------------------------------------------------------------

    def _broken(self, what: str) -> None:
        raise InvariantBroken(self.scenario, self.counts.events, self.timers.now_ms, what)

    def _check_order(self, order: MembershipInstruction) -> None:
        match order:
            case PublishLost():
                node = self.nodes[order.node_id]
                silence_ms = self.timers.now_ms - node.heard_ms
                if silence_ms < self._schedule.lost_after_ms:
                    self._broken(f"{node.node_id} was lost {silence_ms} ms after it was heard")
                self._check_same(order.node_id)
            case PublishChanged():
                if order.status == "suspect" and self.scenario.is_calm:
                    self._broken(f"{order.node_id} is suspect for no reason: {order.reason}")
                self._check_same(order.node_id)
            case _:
                pass

    def _check_routable(self, node_id: NodeId) -> None:
        member = self.control.membership.member(node_id)
        if member is None or member.status != "ready":
            self._broken(f"a request goes to {node_id}, which is {member and member.status}")

    def _check_found(self, node: SimNode, kills: int) -> None:
        if node.is_alive or node.kills != kills:
            return
        member = self.control.membership.member(node.node_id)
        if member is not None and member.status != "lost":
            self._broken(f"{node.node_id} was killed and is still {member.status}")
        self.counts.found += 1

    def _check_deployments(self) -> None:
        for deployment in self.control.deployments:
            missing = self.control.missing(deployment)
            if missing and deployment.refused_version != self.control.table.version:
                self._broken(f"deployment {deployment.number} lacks {missing} and nobody plans")
            for index in missing if deployment.refused_ms == self.timers.now_ms else ():
                self._check_refusal(deployment, index)

    def _check_refusal(self, deployment: SimDeployment, index: int) -> None:
        """A refused slice alone must fit nowhere, unless all slices together were the trouble."""
        needed_mib = sum(part.memory_mib for part in deployment.slices)
        table = self.control.table
        for row in table.rows().tolist():
            is_warm = table.temperature_c[row] >= 75
            is_fit = table.memory_mib_room[row] >= needed_mib and table.health[row] >= 0.3
            if self.control.is_ready(table.node_id(row)) and is_fit and not is_warm:
                self._broken(
                    f"deployment {deployment.number} lacks slice {index}, and {table.name(row)} "
                    "has room for all of it"
                )

    def _check_same(self, node_id: NodeId) -> None:
        member = self.control.membership.member(node_id)
        table = self.control.table
        seen = table.status_of(table.row(node_id)) if node_id in table else None
        if (member and member.status) != seen:
            self._broken(f"the table has {node_id} as {seen}, membership {member}")

    def _sweep(self) -> None:
        for member in self.control.membership.members():
            self._check_same(member.profile.node_id)
