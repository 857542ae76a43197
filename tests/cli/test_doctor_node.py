"""What `din doctor` asks a gateway in the name of this machine's nodes."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from din.cli.check import Check, Place
from din.cli.doctor_disk import CLOCK_FIX
from din.cli.doctor_node import check_admission
from din.domain.enrolment import Membership
from din.domain.gateway_view import GatewayView
from din.domain.trust import PeerName
from din.errors import Unauthenticated
from din.system.identity import claim_directory
from din.trust.authority import Authority
from din.trust.requests import load_key, new_key_pem
from tests.client.fake_gateway import FakeGateway, document, failing
from tests.client.test_credentials import authority_in, issued, served_by_tls

NODE_ID = "ab" * 8
VIEW = GatewayView(
    gateway_id="00000000000000aa", cluster="default", version="0.1.0", pid=1, state_path="/s",
    discovery_mode="auto", nodes=1, models=0,
)  # fmt: skip


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return authority_in(tmp_path / "authority")


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Place:
    """A node that has joined, on a machine where nothing else is."""
    place = Place("node", "node edge-1", tmp_path / "nodes" / "edge-1")
    place.trust.mkdir(parents=True)
    place.folder.chmod(0o700)
    key = new_key_pem()
    name = PeerName("default", "node", NODE_ID)
    made = authority.issue(load_key(key).public_key(), name, datetime.now(UTC))
    (place.trust / "node.key").write_bytes(key)
    (place.trust / "node.pem").write_bytes(made)
    (place.trust / "ca.pem").write_bytes(authority.pem)
    return place


@contextmanager
def gateway_of(
    folder: Path, authority: Authority, node: Place, age_days: int = 0
) -> Iterator[FakeGateway]:
    """A gateway that hears nobody without a certificate of its authority."""
    context = issued(folder, authority, "gateway", age_days=age_days)
    context.load_verify_locations(cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    with served_by_tls(context) as (url, fake):
        joined(node, url)
        yield fake


def joined(node: Place, url: str) -> None:
    member = Membership(
        cluster="default", node_id=NODE_ID, gateways=(url,), signing_key="", begins_ms=1, ends_ms=2
    )
    (node.trust / "cluster.json").write_bytes(msgspec.json.encode(member))


def rows(node: Place) -> dict[str, Check]:
    return {each.name: each for each in check_admission([node])}


def test_a_node_that_is_let_in_is_told_so_without_any_key(
    tmp_path: Path, authority: Authority, node: Place
) -> None:
    with gateway_of(tmp_path, authority, node) as fake:
        fake.routes["GET", "/api/v1/gateway"] = document(VIEW)
        found = rows(node)
        assert "authorization" not in fake.seen[-1].headers
    assert [each.state for each in found.values()] == ["ok"]
    assert found["node edge-1 admission"].seen.endswith("takes its certificate")


def test_a_revoked_node_fails_and_is_told_how_its_machine_comes_back(
    tmp_path: Path, authority: Authority, node: Place
) -> None:
    with gateway_of(tmp_path, authority, node) as fake:
        told = Unauthenticated("the certificate of node x counts no more: the node was revoked")
        fake.routes["GET", "/api/v1/gateway"] = failing(told)
        row = rows(node)["node edge-1 admission"]
        with claim_directory(node.folder, "din node edge-1"):
            running = rows(node)["node edge-1 admission"]
    assert running.fix == f"din node stop edge-1, then {row.fix}"
    assert (row.state, "was revoked" in row.seen) == ("fail", True)
    assert f"mv {node.folder} {node.folder}.old" in row.fix
    assert "din node join - --name edge-1 --gateway https://" in row.fix
    assert "din node stop" not in row.fix


def test_a_gateway_whose_certificate_is_of_another_day_asks_for_the_clocks(
    tmp_path: Path, authority: Authority, node: Place
) -> None:
    with gateway_of(tmp_path, authority, node, age_days=3):
        row = rows(node)["node edge-1 admission"]
    assert (row.state, row.fix) == ("fail", CLOCK_FIX)


def test_a_gateway_that_is_away_fails_and_is_named(node: Place) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        joined(node, f"https://127.0.0.1:{probe.getsockname()[1]}")
        row = rows(node)["node edge-1 admission"]
    assert row.state == "fail"
    assert "no gateway answered at https://127.0.0.1" in row.seen
    assert row.fix


def test_a_closed_port_of_links_is_found_and_named(
    tmp_path: Path, authority: Authority, node: Place
) -> None:
    # 0.0.0.0 is no loopback by its name, and this machine by its route: nothing leaves it.
    with gateway_of(tmp_path, authority, node) as fake, socket.socket() as door:
        door.bind(("0.0.0.0", 0))
        port = door.getsockname()[1]
        links = ("unix:/x.sock", "tcp:127.0.0.1:1", f"tcp:0.0.0.0:{port}")
        fake.routes["GET", "/api/v1/gateway"] = document(msgspec.structs.replace(VIEW, links=links))
        closed = rows(node)["node edge-1 link"]
        door.listen()
        opened = rows(node)["node edge-1 link"]
    assert (closed.state, opened.state) == ("fail", "ok")
    assert f"let TCP {port} through the firewall" in closed.fix


def test_a_machine_where_no_node_has_joined_has_no_such_rows(node: Place) -> None:
    assert rows(node) == {}
