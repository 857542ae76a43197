"""How an agent becomes and stays a member: find a gateway, register, beat, and begin again.

    find      see `search`
    register  POST /api/v1/nodes; a refusal is reported and tried again with back-off
    beat      POST /api/v1/heartbeat on one connection; random first phase, then jitter
    again     on "register again", on a changed profile (a new address: at once), on a clock that
              was set, and after three beats without an answer, when the search begins anew

Nothing that comes over the wire ends the loop. What would never heal, a profile that does not fit
into a registration, is raised. The clock here only paces: the gateway decides who is a member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from din.agent.beats import DatagramBeats
from din.agent.search import (
    REQUEST_FAILURES,
    REQUEST_MS,
    BrowseCall,
    Chosen,
    Connect,
    DiscoveryMode,
    HttpClient,
    Search,
    error_answered,
    said,
)
from din.discovery.schedule import MISSED_BEATS_LOST, BeatSchedule
from din.domain.node import NodeHealth, NodeProfile
from din.errors import Conflict, DinError, Unreachable, UsageError
from din.flow.backoff import Backoff
from din.system.clock import http_date, monotonic_ms, wall_clock_ms
from din.transport.find import browse as browse_child
from din.wire import heartbeat, registration
from din.wire.heartbeat import Heartbeat, HeartbeatAnswer
from din.wire.registration import Admission, Refusal

GOODBYE_MS: Final = 1000
BACKOFF: Final = Backoff(base_ms=100, cap_ms=30_000)
"""Short at first: gateway and node are often started together. Half of each pause is random, so
that a fleet does not come back as one."""
CLOCK_JUMP_MS: Final = 30_000
"""A clock that was set by so much is told anew: the gateway warns of those that are wrong."""
NODES_PATH: Final = "/api/v1/nodes"
HEARTBEAT_PATH: Final = "/api/v1/heartbeat"


class Joined(Struct, frozen=True):
    """A registration that was accepted."""

    answer: Admission
    gateway_url: str
    how: str
    """Why this gateway: its announcement, or the unicast candidate and why multicast failed."""

    @property
    def links(self) -> tuple[str, ...]:
        """Where to dial it: as it says, and before its other TCP addresses under the host at which
        it has just answered. It may have got an address since it started, or be one that it cannot
        know of."""
        host = urlsplit(self.gateway_url).hostname or ""
        shown = f"[{host}]" if ":" in host else host
        unix = [each for each in self.answer.links if each.startswith("unix:")]
        tcp = [each for each in self.answer.links if not each.startswith("unix:")]
        here = [f"tcp:{shown}:{each.rpartition(':')[2]}" for each in tcp]
        return tuple(dict.fromkeys((*unix, *here, *tcp)))


class _Membership(Struct):
    """One accepted registration while it lasts."""

    client: HttpClient
    joined: Joined
    profile: NodeProfile
    schedule: BeatSchedule
    clock_offset_ms: int
    """Of the time of day from the clock that only runs, when the gateway was told the time."""
    datagrams: DatagramBeats | None = None


class Joiner:
    """Keeps one node a member of one cluster: `run` for ever, until `stop`."""

    def __init__(
        self,
        *,
        profile: Callable[[], NodeProfile],
        health: Callable[[], NodeHealth],
        cluster: str,
        discovery_mode: DiscoveryMode,
        gateways: Sequence[str],
        state_dir: Path,
        random: Random,
        report: Callable[..., None],
        connect: Connect,
        on_joined: Callable[[Joined], None],
        on_rejoin: Callable[[Joined], None],
        browse: BrowseCall = browse_child,
        secure_gateways: Sequence[str] | None = None,
        wall_clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`gateways` in order of preference: flag, environment, configuration. `profile` and
        `health` answer at once, from what is measured already. Raises UsageError."""
        self._profile = profile
        self._health = health
        self._cluster = registration.check_name("cluster", cluster)
        self._search = Search(
            cluster=cluster,
            mode=discovery_mode,
            gateways=gateways,
            state_dir=state_dir,
            connect=connect,
            browse=browse,
            report=report,
            secure_gateways=secure_gateways,
        )
        self._random = random
        self._report = report
        self._connect = connect
        self._wall_clock_ms = wall_clock_ms
        self._on_joined = on_joined
        self._on_rejoin = on_rejoin
        self._is_stopping = False
        self._woken = asyncio.Event()
        """Ends a pause early: to stop, or to look again."""
        self._client: HttpClient | None = None
        self._member: _Membership | None = None
        self._was_joined = False
        self._counter = 0
        self._failures = 0

    async def run(self) -> None:
        """Join and stay joined until `stop`. Raises UsageError or TooLarge when the profile does
        not fit into a registration."""
        registration.encode_registration(self._profile(), self._cluster)
        while not self._is_stopping:
            try:
                await self._live_with(await self._search.find())
            except REQUEST_FAILURES as error:
                await self._back_off(error)

    def look_again(self) -> None:
        """This machine's addresses changed: the connection may go by one that is gone, the profile
        may be another, and what failed may succeed now."""
        if self._client is not None:
            self._client.reset()
        self._woken.set()

    @property
    def gateway_url(self) -> str:
        """Where the node is registered now; empty = nowhere."""
        member = self._member
        is_member = member is not None and member.client is self._client
        return member.joined.gateway_url if member is not None and is_member else ""

    async def stop(self) -> None:
        """Say goodbye and end `run`. Never raises; takes at most a second."""
        self._is_stopping = True
        self._woken.set()
        member = self._member
        if member is None:
            return
        path = f"{NODES_PATH}/{member.profile.node_id}?session={member.profile.session}"
        client = self._connect(member.joined.gateway_url)
        try:
            await client.request("DELETE", path, timeout_ms=GOODBYE_MS)
        except REQUEST_FAILURES as error:
            self._report("goodbye_failed", reason=said(error))
        finally:
            await client.close()

    async def _live_with(self, chosen: Chosen) -> None:
        """Register and beat until this gateway is gone. Raises one of REQUEST_FAILURES."""
        client = self._client = self._connect(chosen.url)
        try:
            while not self._is_stopping:
                self._member = await self._register(client, chosen)
                self._failures = 0
                try:
                    await self._beat_until_replaced(self._member)
                finally:
                    if self._member.datagrams is not None:
                        self._member.datagrams.close()
        finally:
            self._client = None
            await client.close()

    # -- registration -----------------------------------------------------------------------------

    async def _register(self, client: HttpClient, chosen: Chosen) -> _Membership:
        profile = self._profile()
        body = registration.encode_registration(profile, self._cluster)
        date = http_date(self._wall_clock_ms())
        headers = {"Content-Type": registration.CONTENT_TYPE, "Date": date}
        offset_ms = self._clock_offset_ms()
        status, _, answer_body = await client.request("POST", NODES_PATH, body, headers, REQUEST_MS)
        if status != 200:
            raise error_answered(status, answer_body)
        answer = registration.decode_answer(answer_body)
        if isinstance(answer, Refusal):
            raise Conflict(f"refused by {chosen.url}: {answer.reason}", hint=answer.hint)
        schedule = BeatSchedule(answer.heartbeat_interval_ms, answer.heartbeat_jitter_ms)
        joined = Joined(answer, chosen.url, chosen.how)
        self._tell(joined)
        datagrams = await self._datagrams(joined)
        return _Membership(client, joined, profile, schedule, offset_ms, datagrams)

    async def _datagrams(self, joined: Joined) -> DatagramBeats | None:
        """Heartbeats by datagram, where the gateway offers them and there is a way."""
        answer = joined.answer
        host = urlsplit(joined.gateway_url).hostname
        if not answer.beat_port or not host:
            return None
        try:
            return await DatagramBeats(answer.beat_key, self._report).open(host, answer.beat_port)
        except Unreachable as error:
            self._report("beats_by_http", reason=error.message)
            return None

    def _tell(self, joined: Joined) -> None:
        answer = joined.answer
        self._report(
            "rejoined" if self._was_joined else "joined",
            name=answer.name,
            gateway=joined.gateway_url,
            gateway_id=answer.gateway_id,
            how=joined.how,
        )
        for warning in answer.warnings:
            self._report("registration_warning", warning=warning)
        call = self._on_rejoin if self._was_joined else self._on_joined
        self._was_joined = True
        self._search.remember(joined.gateway_url)
        call(joined)

    # -- beats ------------------------------------------------------------------------------------

    async def _beat_until_replaced(self, member: _Membership) -> None:
        """Returns when the node is to register again. Raises Unreachable after three beats in a
        row without an answer."""
        delay_ms = member.schedule.first_delay_ms(self._random)
        unanswered = 0
        said_before: HeartbeatAnswer = "ok"
        while await self._goes_on_after(delay_ms):
            if self._profile() != member.profile:
                self._report("profile_changed")
                return
            jump_ms = self._clock_offset_ms() - member.clock_offset_ms
            if abs(jump_ms) >= CLOCK_JUMP_MS:
                self._report("clock_jumped", by_ms=jump_ms)
                return
            try:
                answer = await self._beat(member)
                unanswered = 0
            except REQUEST_FAILURES as error:
                unanswered += 1
                self._report("heartbeat_failed", reason=said(error), in_a_row=unanswered)
                if unanswered >= MISSED_BEATS_LOST:
                    raise Unreachable(
                        f"gateway {member.joined.gateway_url} left {unanswered} heartbeats "
                        f"unanswered: {said(error)}"
                    ) from error
                answer = said_before
            if answer == "register again":
                self._report("asked_to_register_again")
                return
            if answer != said_before:
                self._report("draining" if answer == "draining" else "not_draining")
                said_before = answer
            delay_ms = member.schedule.next_delay_ms(self._random)

    async def _beat(self, member: _Membership) -> HeartbeatAnswer:
        timeout_ms = min(REQUEST_MS, member.schedule.interval_ms)
        headers = {"Content-Type": heartbeat.CONTENT_TYPE}
        body = self._encoded_beat(member.profile)
        if member.datagrams is not None:
            by_datagram = await member.datagrams.ask(body)
            if by_datagram is not None:
                return by_datagram
        status, _, answer = await member.client.request(
            "POST", HEARTBEAT_PATH, body, headers, timeout_ms
        )
        if status != 200:
            raise error_answered(status, answer)
        return heartbeat.decode_heartbeat_answer(answer)

    def _clock_offset_ms(self) -> int:
        return self._wall_clock_ms() - monotonic_ms()

    def _encoded_beat(self, profile: NodeProfile) -> bytes:
        """A sample that cannot be sent costs the sample and not the beat."""
        self._counter += 1
        health = self._health()
        try:
            return heartbeat.encode_heartbeat(self._heartbeat(profile, health))
        except UsageError as error:
            self._report("sample_dropped", reason=error.message)
            bare = NodeHealth(queue_length=max(0, health.queue_length))
            return heartbeat.encode_heartbeat(self._heartbeat(profile, bare))

    def _heartbeat(self, profile: NodeProfile, health: NodeHealth) -> Heartbeat:
        return Heartbeat(
            node_id=profile.node_id,
            session=profile.session,
            counter=self._counter,
            health=health,
        )

    # -- pace -------------------------------------------------------------------------------------

    async def _back_off(self, error: BaseException) -> None:
        """Wait longer after each failure in a row."""
        delay_ms = round(BACKOFF.delay_ms(self._failures, self._random))
        self._failures += 1
        hint = error.hint if isinstance(error, DinError) else ""
        self._report("not_joined", reason=said(error), hint=hint, retry_in_ms=delay_ms)
        await self._goes_on_after(delay_ms)

    async def _goes_on_after(self, delay_ms: int) -> bool:
        """Pause, unless there is a reason not to; False = stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_ms / 1000):
                await self._woken.wait()
        self._woken.clear()
        return not self._is_stopping
