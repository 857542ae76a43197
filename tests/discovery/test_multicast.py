"""Announcing and browsing for real, on loopback."""

import asyncio
import json
import secrets
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from din.system.network import AddressWatch
from din.transport.announce import SERVICE_TYPE, Announcer
from din.transport.find import browse, browse_command

VECTORS = Path(__file__).parents[2] / "docs/protocol/vectors/announcement.json"
GATEWAY = "9d8c7b6a5f4e3d2c"


def announcer(cluster: str, host: str = "127.0.0.1", reports: list | None = None) -> Announcer:
    kept = [] if reports is None else reports
    return Announcer(
        cluster=cluster,
        gateway_id=GATEWAY,
        version="0.1.0",
        http_host=host,
        http_port=8123,
        report=lambda event, **fields: kept.append((event, fields)),
        watch=AddressWatch(source=dict),
    )


@asynccontextmanager
async def announced(cluster: str):
    gateway = announcer(cluster)
    try:
        assert await gateway.start() is None, "multicast on loopback is not possible here"
        yield gateway
    finally:
        await gateway.stop()


@pytest.mark.system
def test_an_announced_gateway_is_found_by_its_cluster_only() -> None:
    async def scenario() -> None:
        mine, other = (f"test-{secrets.token_hex(4)}" for _ in range(2))
        async with announced(mine):
            found = await browse(mine, 10_000)
            assert found.gateway is not None, found.reason
            assert found.gateway.urls == ("http://127.0.0.1:8123",)
            assert (found.gateway.gateway_id, found.gateway.version) == (GATEWAY, "0.1.0")
            nothing = await browse(other, 1500)
            assert nothing.gateway is None
            assert f"no gateway of cluster '{other}'" in nothing.reason
            assert mine in nothing.reason

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.system
def test_what_cannot_be_announced_is_a_reason_and_not_an_error() -> None:
    """T03: also where an address is not ours any more (T02)."""

    async def scenario() -> None:
        reports: list = []
        gateway = announcer("x", "203.0.113.7", reports)
        reason = await gateway.start()
        assert reason is not None
        assert "multicast DNS on 203.0.113.7 failed" in reason
        assert gateway.failure == reason
        assert reports[0][0] == "announce_failed"
        await gateway.refresh()
        await gateway.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_refused_port_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """T03: port 5353 is refused."""

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("din.transport.announce.AsyncZeroconf", refuse)
    reason = asyncio.run(announcer("x").start())
    assert reason == "multicast DNS on 127.0.0.1 failed: [Errno 13] Permission denied"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('print(\'{"error": "port 5353 is refused"}\')', "port 5353 is refused"),
        ("print('not json')", "something unexpected"),
        ("print('x' * 100000)", "something unexpected"),
        ("raise SystemExit(3)", "ended with code 3"),
        ("", "no gateway of cluster 'c' announced itself"),
    ],
)
def test_whatever_the_child_does_there_is_a_reason(script: str, reason: str) -> None:
    async def scenario() -> None:
        found = await browse("c", 3000, (sys.executable, "-c", script))
        assert found.gateway is None
        assert reason in found.reason

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.system
def test_a_child_that_is_given_interfaces_asks_this_host_as_well() -> None:
    """T01."""

    async def scenario() -> None:
        mine = f"test-{secrets.token_hex(4)}"
        async with announced(mine):
            found = await browse(mine, 10_000, browse_command(("none*",), ("eth*",)))
            assert found.gateway is not None, "this host is always asked"

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_child_that_hangs_is_ended() -> None:
    async def scenario() -> None:
        command = (sys.executable, "-c", "import time; time.sleep(60)")
        found = await browse("c", 1, command)
        assert "announced itself in" in found.reason

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_child_that_cannot_start_is_a_reason() -> None:
    found = asyncio.run(browse("c", 1, ("/nowhere/python",)))
    assert "did not start" in found.reason


def test_the_announcement_is_as_published() -> None:
    vector = json.loads(VECTORS.read_text())
    service = announcer(vector["cluster"])._service(("127.0.0.1",))
    assert service.type == SERVICE_TYPE == vector["type"]
    assert service.name == vector["name"]
    assert service.server == vector["server"]
    assert service.text.hex() == vector["txt_hex"]
    long = announcer("c" * 63)._service(("127.0.0.1",))
    assert len(long.name.partition(".")[0]) == 63
