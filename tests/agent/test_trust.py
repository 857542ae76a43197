"""When a node renews its certificate, by whom, and what it says when that fails."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from din.agent import trust as module
from din.agent.search import BrowseCall
from din.agent.trust import NodeTrust, open_trust, run_renewal
from din.config import NodeConfig
from din.domain.enrolment import Membership
from din.errors import Conflict, Denied, Internal, Unavailable, Unreachable, UsageError
from din.transport.find import Browsed, Found
from din.transport.membership import EnrolOrder, read_membership, write_membership

sys.path.insert(0, str(Path(__file__).parents[1] / "transport"))
from tls_machines import CLUSTER, NODE, authority_in, machine

HOUR_MS = 3_600_000
BEGINS_MS = 1_000_000 * HOUR_MS
KNOWN = "https://10.0.0.1:8443"


class Log:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def report(self, event: str, **facts: Any) -> None:
        self.told.append((event, facts))

    error = report

    def events(self) -> list[str]:
        return [event for event, _ in self.told]


def node(folder: Path) -> Path:
    """The trust folder of a machine that has joined."""
    trust = folder / "trust"
    folder.mkdir(exist_ok=True)
    machine(trust, authority_in(folder / "authority"), NODE)
    membership = Membership(
        cluster=CLUSTER,
        node_id=NODE.id,
        gateways=(KNOWN,),
        signing_key="",
        begins_ms=BEGINS_MS,
        ends_ms=BEGINS_MS + 24 * HOUR_MS,
    )
    write_membership(trust, membership)
    return trust


def trust_of(folder: Path, log: Log, *gateways: str) -> NodeTrust:
    return NodeTrust(node(folder), log, Random(1), gateways)


class Children:
    """Stand in for the renewing process; each order is answered by the next outcome."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: object) -> None:
        self.orders: list[EnrolOrder] = []
        self.outcomes = list(outcomes)
        self.now_ms = BEGINS_MS
        self.uptime_ms = 0
        monkeypatch.setattr(module, "run_renewal", self.renew)
        monkeypatch.setattr(module, "wall_clock_ms", lambda: self.now_ms)
        monkeypatch.setattr(module, "boot_ms", lambda: self.uptime_ms)
        monkeypatch.setattr(module, "LOOK_S", 0.0)

    async def renew(self, order: EnrolOrder) -> Membership:
        self.orders.append(order)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Membership)
        return outcome


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0)


def in_loop(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await story()

    asyncio.run(run())


def test_renewal_is_due_about_two_thirds_through_and_when_the_clock_went_back(
    tmp_path: Path,
) -> None:
    trust = trust_of(tmp_path, Log())
    assert not trust.is_due(BEGINS_MS)
    assert not trust.is_due(BEGINS_MS + 14 * HOUR_MS)
    assert trust.is_due(BEGINS_MS + 18 * HOUR_MS)
    assert trust.is_due(BEGINS_MS + 1000 * HOUR_MS)
    assert trust.is_due(BEGINS_MS - HOUR_MS)


def test_a_clock_that_is_a_little_behind_finds_no_new_certificate_due(tmp_path: Path) -> None:
    assert not trust_of(tmp_path, Log()).is_due(BEGINS_MS - HOUR_MS // 12)


def test_nodes_that_joined_together_do_not_renew_together(tmp_path: Path) -> None:
    folder = node(tmp_path)
    at_ms = BEGINS_MS + 16 * HOUR_MS
    due = {NodeTrust(folder, Log(), Random(seed)).is_due(at_ms) for seed in range(20)}
    assert due == {True, False}


def test_a_renewal_in_time_wakes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, woken = Log(), list[str]()
    trust = trust_of(tmp_path, log)
    later = replace(trust.membership, begins_ms=BEGINS_MS + 18 * HOUR_MS)
    children = Children(monkeypatch, replace(later, ends_ms=later.begins_ms + 24 * HOUR_MS))
    children.now_ms = later.begins_ms

    async def story() -> None:
        trust.start(lambda: woken.append("woken"))
        await until(lambda: "certificate_renewed" in log.events())
        await trust.stop()

    in_loop(story)
    assert trust.membership.begins_ms == later.begins_ms
    assert (len(children.orders), woken) == (1, [])


def test_one_that_had_ended_is_renewed_at_once_and_whoever_waits_is_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, woken = Log(), list[str]()
    trust = trust_of(tmp_path, log, "10.0.0.7", "http://10.0.0.8:8000", KNOWN)
    begins_ms = BEGINS_MS + 500 * HOUR_MS
    fresh = replace(trust.membership, begins_ms=begins_ms, ends_ms=begins_ms + 24 * HOUR_MS)
    children = Children(monkeypatch, fresh)
    children.now_ms = begins_ms

    async def story() -> None:
        trust.start(lambda: woken.append("woken"))
        await until(lambda: bool(woken))
        await trust.stop()

    in_loop(story)
    # The operator's word first, each once, and none that speaks no TLS.
    assert children.orders[0].gateways == ("https://10.0.0.7:8443", KNOWN)
    assert log.events() == ["certificate_renewed"]


def test_a_gateway_that_has_moved_is_looked_for_and_no_other_when_one_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, looked = Log(), list[str]()
    moved = "https://10.0.0.44:8443"
    folder = node(tmp_path)

    async def announced(cluster: str, timeout_ms: int) -> Browsed:
        assert timeout_ms > 0
        looked.append(cluster)
        return Browsed(Found(cluster, "ab" * 8, "1", ("http://10.0.0.44:8000",), (KNOWN, moved)))

    async def nothing(cluster: str, timeout_ms: int) -> Browsed:
        del cluster, timeout_ms
        return Browsed(None, "nothing announced itself")

    async def renewed(browse: BrowseCall | None, *outcomes: object) -> list[EnrolOrder]:
        children = Children(monkeypatch, *outcomes)
        trust = NodeTrust(folder, log, Random(1), (), browse)
        children.now_ms = trust.membership.ends_ms
        before = len(log.told)
        trust.start(lambda: None)
        await until(lambda: len(log.told) > before)
        await trust.stop()
        return children.orders

    async def story() -> None:
        silent = Unreachable(f"{KNOWN}: no answer")
        fresh = replace(read_membership(folder), ends_ms=BEGINS_MS + 10_000 * HOUR_MS)
        orders = await renewed(announced, silent, fresh)
        assert [each.gateways for each in orders] == [(KNOWN,), (moved,)]
        assert looked == [CLUSTER]
        for browse in (nothing, None):
            assert len(await renewed(browse, silent)) == 1
        # A gateway that refuses has not moved.
        assert len(await renewed(announced, Denied("it ended 31.0 days ago"))) == 1
        assert looked == [CLUSTER]

    in_loop(story)
    assert log.events() == [
        "certificate_renewed",
        "certificate_has_ended",
        "certificate_has_ended",
        "certificate_has_ended",
    ]


def test_failures_are_told_louder_the_nearer_the_end_and_tried_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    trust = trust_of(tmp_path, log)
    refusal = Denied("it ended 31.0 days ago", hint="din node join -")
    children = Children(monkeypatch, *(refusal for _ in range(3)))
    children.now_ms = BEGINS_MS + 18 * HOUR_MS

    async def story() -> None:
        trust.start(lambda: None)
        for hours in (18, 23, 1000):
            children.now_ms = BEGINS_MS + hours * HOUR_MS
            children.uptime_ms += HOUR_MS
            before = len(log.told)
            await until(lambda seen=before: len(log.told) > seen)
            for _ in range(50):  # the clock stands: no other try before the pause is over
                await asyncio.sleep(0)
        await trust.stop()

    in_loop(story)
    assert log.events() == [
        "certificate_not_renewed",
        "certificate_ends_soon",
        "certificate_has_ended",
    ]
    assert log.told[-1][1]["hint"] == "din node join -"
    assert log.told[-1][1]["left_s"] < 0


def test_a_clock_that_is_put_back_makes_no_pause_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    trust = trust_of(tmp_path, log)
    begins_ms = BEGINS_MS + 18 * HOUR_MS
    fresh = replace(trust.membership, begins_ms=begins_ms, ends_ms=begins_ms + 24 * HOUR_MS)
    children = Children(monkeypatch, Denied("the gateway's certificate has ended"), fresh)
    children.now_ms = BEGINS_MS + 9_000 * HOUR_MS

    async def story() -> None:
        trust.start(lambda: None)
        await until(lambda: bool(log.told))
        children.now_ms = begins_ms
        children.uptime_ms += HOUR_MS
        await until(lambda: "certificate_renewed" in log.events())
        await trust.stop()

    in_loop(story)


def test_the_child_tells_why_it_could_not(tmp_path: Path) -> None:
    folder = node(tmp_path)

    async def story() -> None:
        with pytest.raises(Unavailable, match="no gateway was named"):
            await run_renewal(EnrolOrder(folder=str(folder), gateways=()))
        order = EnrolOrder(folder=str(folder), gateways=("https://127.0.0.1:1",))
        with pytest.raises(Unavailable, match="refused"):
            await run_renewal(order)

    in_loop(story)


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        (["/nowhere/python"], Unavailable, "did not start"),
        ([sys.executable, "-c", ""], Internal, "without an answer"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], Unavailable, "took more than"),
    ],
)
def test_a_child_that_fails_is_ended_and_said(
    command: list[str], error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "enrol_command", lambda _: command)
    if words == "took more than":
        monkeypatch.setattr(module, "CHILD_S", 0.2)

    async def story() -> None:
        with pytest.raises(error, match=words):
            await run_renewal(EnrolOrder(folder="", gateways=()))

    in_loop(story)


def test_a_node_without_a_membership_has_no_trust(tmp_path: Path) -> None:
    assert open_trust(NodeConfig(state_dir=str(tmp_path)), NODE.id) is None


def test_a_node_serves_the_cluster_and_the_id_that_it_joined_with(tmp_path: Path) -> None:
    node(tmp_path)
    config = NodeConfig(state_dir=str(tmp_path))
    opened = open_trust(config, NODE.id)
    assert opened is not None
    assert opened.identity.cluster == CLUSTER
    assert open_trust(replace(config, cluster=CLUSTER), NODE.id) is not None
    with pytest.raises(Conflict, match="has joined cluster 'plant', not 'other'"):
        open_trust(replace(config, cluster="other"), NODE.id)
    with pytest.raises(Conflict, match=f"certificate is of {NODE.id}"):
        open_trust(config, "0" * 16)
    with pytest.raises(UsageError, match=r"no address|not of the form"):
        open_trust(replace(config, gateway=("https://a/b/c",)), NODE.id)


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = node(tmp_path)
    (folder / "node.pem").unlink()
    with pytest.raises(Unavailable, match=r"node\.pem is missing"):
        open_trust(NodeConfig(state_dir=str(tmp_path)), NODE.id)
    (folder / "cluster.json").write_text("{")
    with pytest.raises(Unavailable, match=r"cluster\.json cannot be read"):
        open_trust(NodeConfig(state_dir=str(tmp_path)), NODE.id)
