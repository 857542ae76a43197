"""A gateway for the tests of joining: the real cores behind an HTTP client kept in memory."""

import asyncio
import itertools
from collections.abc import Callable

import msgspec

from din.discovery.admission import Terms, admit
from din.discovery.events import AnswerBeat, NodeLeft
from din.discovery.membership import Membership
from din.discovery.schedule import BeatSchedule
from din.domain.gateway_view import ErrorView, GatewayView
from din.errors import DinError, NotFound, Unreachable
from din.wire.heartbeat import decode_heartbeat, encode_heartbeat_answer
from din.wire.registration import decode_registration, encode_answer

URL = "http://127.0.0.1:8000"
QUICK = BeatSchedule(50, 7)


class FakeGateway:
    """Speaks the control API's three calls; `is_up` unplugs it, `restart` empties its memory."""

    def __init__(self, cluster: str = "factory") -> None:
        self.cluster = cluster
        self.is_up = True
        self.calls: list[tuple[str, str]] = []
        self.beats: list = []
        self.sessions: list[int] = []
        self.dates: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.membership = Membership(QUICK)
        self.clock = itertools.count()
        self.terms = Terms(cluster=self.cluster, gateway_id="ab" * 8, links=("tcp:10.0.0.1:8002",))

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if not self.is_up:
            raise Unreachable("connection refused")
        self.calls.append((method, path))
        now_ms = next(self.clock)
        try:
            if path == "/api/v1/gateway":
                return 200, self.view()
            if (method, path) == ("POST", "/api/v1/nodes"):
                registration = decode_registration(body)
                self.sessions.append(registration.profile.session)
                answer, _ = admit(self.membership, now_ms, registration, self.terms)
                return 200, encode_answer(answer)
            if path == "/api/v1/heartbeat":
                return 200, self.beat(now_ms, body)
            if method == "DELETE":
                node_id, _, session = path.rpartition("/")[2].partition("?session=")
                self.membership.handle(now_ms, NodeLeft(node_id, int(session)))
                return 204, b""
            raise NotFound(f"no {path}")
        except DinError as error:
            view = ErrorView(code=error.code, message=error.message, hint=error.hint)
            return error.http_status, msgspec.json.encode({"error": view})

    def beat(self, now_ms: int, body: bytes) -> bytes:
        beat = decode_heartbeat(body)
        self.beats.append(beat)
        order = self.membership.handle(now_ms, beat)[-1]
        assert isinstance(order, AnswerBeat)
        return encode_heartbeat_answer(order.answer)

    def view(self) -> bytes:
        return msgspec.json.encode(
            GatewayView(
                gateway_id="ab" * 8,
                cluster=self.cluster,
                version="0",
                pid=1,
                state_path="",
                discovery_mode="auto",
                nodes=0,
                models=0,
            )
        )


class Network:
    """Gateways by URL; what is not there refuses connections."""

    def __init__(self, **gateways: FakeGateway) -> None:
        self.gateways: dict[str, FakeGateway] = dict(gateways)
        self.open = 0
        self.resets = 0

    def connect(self, url: str) -> "FakeClient":
        return FakeClient(self, url)


class FakeClient:
    def __init__(self, network: Network, url: str) -> None:
        self.network, self.url = network, url
        network.open += 1

    async def request(self, method, path, body=b"", headers=None, timeout_ms=1000):
        await asyncio.sleep(0)
        gateway = self.network.gateways.get(self.url)
        if gateway is None:
            raise Unreachable("connection refused")
        if "Date" in (headers or {}):
            gateway.dates.append(headers["Date"])
        status, answer = gateway.answer(method, path, body)
        return status, {}, answer

    def reset(self) -> None:
        self.network.resets += 1

    async def close(self) -> None:
        self.network.open -= 1


async def until(is_true: Callable[[], object]) -> None:
    """Wait in small steps until it holds; the test's own time-out is the bound."""
    async with asyncio.timeout(20):
        while not is_true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
