"""Joining: where a gateway is found, why, and what happens when it goes away and comes back."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest

from din.agent.join import Joined, Joiner
from din.agent.search import gateway_url
from din.discovery.membership import Membership
from din.discovery.schedule import BeatSchedule
from din.domain.gateway_view import ErrorView
from din.domain.node import NodeHealth, NodeId, NodeProfile
from din.errors import Denied, TooLarge, UsageError
from din.flow.backoff import Backoff
from din.system.clock import monotonic_ms
from din.transport.find import Browsed, Found
from din.wire.registration import Admission

sys.path.insert(0, str(Path(__file__).parent))
from join_gateway import URL, FakeGateway, Network, until

NODE = NodeId("000000000000000a")
OTHER_URL = "http://10.0.0.9:8000"
PROFILE = NodeProfile(
    node_id=NODE,
    session=4,
    name="edge",
    device_type="x86_64-cpu",
    cpu_model="test",
    cpu_isa=(),
    cpu_cores=1.0,
    memory_mib=100,
)
FORBIDDEN = {
    "numpy", "onnx", "onnxruntime", "grpc", "flatbuffers", "click", "rich",
    "starlette", "zeroconf", "cryptography", "yaml",
}  # fmt: skip


class Node:
    """One joiner with everything it needs, and what it said."""

    def __init__(self, network: Network, state_dir: Path, **more) -> None:
        self.profile, self.health = PROFILE, NodeHealth(cpu_percent=12.5)
        self.reports: list[tuple[str, dict]] = []
        self.joined: list[Joined] = []
        self.rejoined: list[Joined] = []
        self.browsed = Browsed(None, "port 5353 is refused")
        settings = {"discovery_mode": "auto", "gateways": (), "cluster": "factory"} | more
        self.joiner = Joiner(
            profile=lambda: self.profile,
            health=lambda: self.health,
            state_dir=state_dir,
            random=Random(1),
            report=lambda event, **fields: self.reports.append((event, fields)),
            connect=network.connect,
            on_joined=self.joined.append,
            on_rejoin=self.rejoined.append,
            browse=self.browse,
            **settings,
        )

    async def browse(self, cluster: str, timeout_ms: int) -> Browsed:
        assert (cluster, timeout_ms) == ("factory", 5000)
        return self.browsed

    def said(self, event: str) -> list[dict]:
        return [fields for name, fields in self.reports if name == event]


@asynccontextmanager
async def running(node: Node):
    task = asyncio.create_task(node.joiner.run())
    try:
        yield
    finally:
        await node.joiner.stop()
        await asyncio.wait_for(task, 20)


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("din.agent.join.BACKOFF", Backoff(base_ms=5, cap_ms=20))


def play(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_a_gateway_that_announces_itself_is_joined(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[OTHER_URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        node.browsed = Browsed(Found("factory", "ab" * 8, "0", ("http://dead:1", OTHER_URL)))
        async with running(node):
            await until(lambda: gateway.beats)
        assert node.joined[0].gateway_url == OTHER_URL
        assert "announced by multicast" in node.joined[0].how
        assert node.joined[0].answer.links == ("tcp:10.0.0.1:8002",)
        assert gateway.beats[0].health == NodeHealth(cpu_percent=12.5)
        assert network.open == 0

    play(scenario())


def test_a_node_without_a_certificate_is_told_where_it_could_join(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(Network(), tmp_path)
        secure = "https://10.0.0.44:8443"
        node.browsed = Browsed(Found("factory", "ab" * 8, "0", ("http://dead:1",), (secure,)))
        async with running(node):
            await until(lambda: node.said("not_joined"))
        told = node.said("not_joined")[0]
        assert "takes joined machines" in told["reason"]
        assert f"din node join - --gateway {secure}" in told["hint"]

    play(scenario())


def test_without_multicast_unicast_is_used_and_the_reason_is_shown(tmp_path: Path) -> None:
    """T03."""

    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = FakeGateway()
        node = Node(network, tmp_path)
        async with running(node):
            await until(lambda: node.joined)
        assert node.joined[0].how == "unicast, since port 5353 is refused"
        assert node.said("multicast_found_nothing")[0]["reason"] == "port 5353 is refused"

    play(scenario())


def test_a_gateway_that_the_operator_named_is_the_only_one_asked(tmp_path: Path) -> None:
    """A dead URL is retried, with the reason shown; whoever else is near is not the one wanted."""

    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = FakeGateway()
        (tmp_path / "gateway.json").write_bytes(msgspec.json.encode({"url": URL}))
        node = Node(network, tmp_path, gateways=("http://gone:1",))
        async with running(node):
            await until(lambda: len(node.said("not_joined")) > 2)
            assert network.gateways[URL].calls == []
            network.gateways["http://gone:1"] = FakeGateway()
            await until(lambda: node.joined)
        report = node.said("not_joined")[0]
        assert "that was named is not there: http://gone:1 did not answer" in report["reason"]
        assert "--gateway" in report["hint"]
        assert not node.said("multicast_found_nothing")
        assert node.joined[0].how == "named by the operator"

    play(scenario())


def test_gateways_that_the_operator_named_are_asked_in_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = FakeGateway()
        network.gateways[OTHER_URL] = FakeGateway()
        node = Node(network, tmp_path, gateways=("http://gone:1", "10.0.0.9"))
        async with running(node):
            await until(lambda: node.joined)
        assert node.joined[0].gateway_url == OTHER_URL

    play(scenario())


def test_the_last_known_gateway_is_tried_before_loopback(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[OTHER_URL] = FakeGateway()
        first = Node(network, tmp_path, gateways=(OTHER_URL,))
        async with running(first):
            await until(lambda: first.joined)
        network.gateways[URL] = FakeGateway()
        second = Node(network, tmp_path, discovery_mode="unicast")
        async with running(second):
            await until(lambda: second.joined)
        assert second.joined[0].gateway_url == OTHER_URL

    play(scenario())


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b'{"url": "ftp://x"}'])
def test_a_damaged_memory_of_the_last_gateway_is_reported(tmp_path: Path, content: bytes) -> None:
    async def scenario() -> None:
        (tmp_path / "gateway.json").write_bytes(content)
        network = Network()
        network.gateways[URL] = FakeGateway()
        node = Node(network, tmp_path, discovery_mode="unicast")
        async with running(node):
            await until(lambda: node.joined)
        assert node.said("last_gateway_unreadable")
        assert json.loads((tmp_path / "gateway.json").read_text()) == {"url": URL}

    play(scenario())


def test_another_cluster_is_not_joined_and_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = FakeGateway("office")
        node = Node(network, tmp_path, discovery_mode="unicast")
        async with running(node):
            await until(lambda: node.said("not_joined"))
        report = node.said("not_joined")[0]
        assert "serves cluster 'office'" in report["reason"]
        assert "--gateway" in report["hint"]
        assert network.gateways[URL].sessions == []

    play(scenario())


def test_multicast_mode_never_falls_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = FakeGateway()
        node = Node(network, tmp_path, discovery_mode="multicast", gateways=(URL,))
        async with running(node):
            await until(lambda: len(node.said("not_joined")) > 2)
        assert network.gateways[URL].calls == []

    play(scenario())


def test_a_restarted_gateway_gets_the_node_back(tmp_path: Path) -> None:
    """T18: its memory is empty, the beat is answered "register again"."""

    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        async with running(node):
            await until(lambda: gateway.beats)
            gateway.restart()
            await until(lambda: node.rejoined)
            assert gateway.membership.member(NODE) is not None
        assert len(node.joined) == 1
        assert node.said("asked_to_register_again")

    play(scenario())


def test_a_gateway_that_is_away_for_long_is_joined_again(tmp_path: Path) -> None:
    """T18."""

    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        async with running(node):
            await until(lambda: gateway.beats)
            gateway.is_up = False
            await until(lambda: len(node.said("not_joined")) > 2)
            assert [each["in_a_row"] for each in node.said("heartbeat_failed")] == [1, 2, 3]
            gateway.restart()
            gateway.is_up = True
            await until(lambda: node.rejoined)

    play(scenario())


def test_a_new_address_is_registered_under_the_same_session(tmp_path: Path) -> None:
    """T06."""

    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        async with running(node):
            await until(lambda: gateway.beats)
            moved = ("tcp:10.0.0.77:8080",)
            node.profile = msgspec.structs.replace(PROFILE, addresses=moved)
            await until(lambda: node.rejoined)
            assert gateway.membership.member(NODE).profile.addresses == moved
        assert gateway.sessions == [4, 4]

    play(scenario())


def test_a_clock_that_was_set_is_told_anew(tmp_path: Path) -> None:
    """T12."""

    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        set_by_ms = 0
        node = Node(network, tmp_path, wall_clock_ms=lambda: monotonic_ms() + set_by_ms)
        async with running(node):
            await until(lambda: gateway.beats)
            set_by_ms = 1_767_225_600_000
            await until(lambda: node.rejoined)
            beats = len(gateway.beats)
            await until(lambda: len(gateway.beats) > beats + 2)
        assert node.said("clock_jumped") == [{"by_ms": set_by_ms}]
        assert [date[12:16] for date in gateway.dates] == ["1970", "2026"]
        assert gateway.sessions == [4, 4]

    play(scenario())


SELDOM = BeatSchedule(3_600_000, 0)


def test_a_node_that_looks_again_tells_a_new_address_without_waiting_for_a_beat(
    tmp_path: Path,
) -> None:
    """T06. Its connection may go by an address that is gone, so that is given up as well."""

    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        gateway.membership = Membership(SELDOM)
        node = Node(network, tmp_path)
        async with running(node):
            await until(lambda: node.joined)
            moved = ("tcp:10.0.0.77:8080",)
            node.profile = msgspec.structs.replace(PROFILE, addresses=moved)
            node.joiner.look_again()
            await until(lambda: node.rejoined)
            assert gateway.membership.member(NODE).profile.addresses == moved
            assert network.resets == 1

    play(scenario())


def test_a_node_that_looks_again_does_not_sit_out_the_pause_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cable was out for long: when it is back the node is too."""
    monkeypatch.setattr("din.agent.join.BACKOFF", Backoff(base_ms=3_600_000, cap_ms=3_600_000))

    async def scenario() -> None:
        network = Network()
        node = Node(network, tmp_path)
        async with running(node):
            await until(lambda: node.said("not_joined"))
            network.gateways[URL] = FakeGateway()
            node.joiner.look_again()
            await until(lambda: node.joined)

    play(scenario())


def test_a_goodbye_is_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        async with running(node):
            await until(lambda: gateway.beats)
        assert gateway.calls[-1] == ("DELETE", f"/api/v1/nodes/{NODE}?session=4")
        assert gateway.membership.member(NODE).status == "lost"

    play(scenario())


def test_a_goodbye_to_a_gateway_that_is_gone_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        async with running(node):
            await until(lambda: gateway.beats)
            gateway.is_up = False
        assert node.said("goodbye_failed")

    play(scenario())


def test_a_refused_session_waits_and_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = FakeGateway()
        newer = Node(network, tmp_path / "a")
        newer.profile = msgspec.structs.replace(PROFILE, session=9)
        older = Node(network, tmp_path / "b")
        (tmp_path / "a").mkdir()
        async with running(newer):
            await until(lambda: newer.joined)
            async with running(older):
                await until(lambda: older.said("not_joined"))
        assert "session 4" in older.said("not_joined")[0]["reason"]
        assert "identity.json" in older.said("not_joined")[0]["hint"]

    play(scenario())


def test_a_sample_that_cannot_be_sent_costs_the_sample_and_not_the_beat(tmp_path: Path) -> None:
    """T20, T22: a sensor must never make a node look dead."""

    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        node.health = NodeHealth(temperature_c=9999.0, queue_length=3)
        async with running(node):
            await until(lambda: gateway.beats)
        assert gateway.beats[0].health == NodeHealth(queue_length=3)
        assert "temperature" in node.said("sample_dropped")[0]["reason"]

    play(scenario())


def test_nonsense_from_a_gateway_never_ends_the_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        honest = gateway.answer
        nonsense = [(200, b"{"), (500, b"oops"), (200, gateway.view()), (200, b"\xff\xff")]

        def answer(method: str, path: str, body: bytes) -> tuple[int, bytes]:
            return nonsense.pop(0) if nonsense else honest(method, path, body)

        gateway.answer = answer
        async with running(node):
            await until(lambda: node.joined)
        reasons = " ".join(each["reason"] for each in node.said("not_joined"))
        assert "no gateway's" in reasons
        assert "HTTP status 500" in reasons
        assert "ends early" in reasons

    play(scenario())


def test_why_a_gateway_refuses_to_be_asked_is_told_with_its_hint(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = Network()
        network.gateways[URL] = gateway = FakeGateway()
        node = Node(network, tmp_path)
        told = ErrorView(code=Denied.code, message="the node was revoked", hint="join anew")
        gateway.answer = lambda *_: (401, msgspec.json.encode({"error": told}))
        async with running(node):
            await until(lambda: node.said("not_joined"))
        line = node.said("not_joined")[0]
        assert f"{URL} refused: the node was revoked" in line["reason"]
        assert line["hint"] == "join anew"

    play(scenario())


def test_a_profile_that_does_not_fit_is_raised_at_once(tmp_path: Path) -> None:
    node = Node(Network(), tmp_path)
    labels = {f"label-{each}": "x" * 40 for each in range(8)}
    node.profile = msgspec.structs.replace(PROFILE, labels=labels)
    with pytest.raises(TooLarge, match="limit is 379"):
        play(node.joiner.run())


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("edge-gw", "http://edge-gw:8000"),
        ("10.0.0.1:9000", "http://10.0.0.1:9000"),
        ("http://gw:8000/", "http://gw:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_what_people_write_becomes_a_url(text: str, url: str) -> None:
    assert gateway_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://x", "http://h:99999", "http://h/path", "http://[::1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="gateway"):
        gateway_url(text)


def test_joining_pulls_in_none_of_the_heavy_libraries() -> None:
    """The idle agent stays small: what joins must not import what only gateways need."""
    script = (
        "import sys, asyncio, ssl\n"
        "import din.agent.join, din.system.sensors, din.system.fingerprint\n"
        "print(' '.join(sorted({each.partition('.')[0] for each in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert not FORBIDDEN & set(done.stdout.split())


def test_a_gateway_is_dialled_first_where_it_has_just_answered() -> None:
    """T06: its address of this moment may be one that it did not have when it started."""
    answer = Admission(
        name="edge",
        gateway_id="9d8c7b6a5f4e3d2c",
        heartbeat_interval_ms=3000,
        heartbeat_jitter_ms=450,
        links=("unix:/run/g.sock", "tcp:10.0.0.1:9000", "tcp:10.0.1.1:9000"),
        protocol_version=1,
    )
    assert Joined(answer, "http://10.0.1.1:8000", "").links == (
        "unix:/run/g.sock",
        "tcp:10.0.1.1:9000",
        "tcp:10.0.0.1:9000",
    )
    assert "tcp:[fd00::1]:9000" in Joined(answer, "http://[fd00::1]:8000", "").links
