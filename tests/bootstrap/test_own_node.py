"""The gateway's own node: when it gets a certificate, when it goes without, and what stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from din.bootstrap.own_node import settle_own_node
from din.bootstrap.trust import GatewayTrust, open_trust
from din.config import GatewayConfig
from din.domain.enrolment import Membership
from din.domain.node import NodeId, NodeProfile
from din.domain.trust import Peer, PeerName
from din.errors import Denied
from din.system.identity import claim_directory, write_atomically
from din.transport.membership import has_joined, read_membership, write_membership
from din.trust.requests import check_issued, new_key_pem
from tests.gateway.enrolment_desk import CLUSTER, GATEWAY_ID, Desk, at_desk

HOST = "10.0.0.1"
LOCAL = Peer("127.0.0.1")


class House:
    """A gateway's machine, with its own node's directory."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk = desk
        self.place = folder / "nodes" / "hall-1"
        self.trust = self.place / "trust"
        self.gateway: GatewayTrust = open_trust(
            folder, CLUSTER, GATEWAY_ID, tuple, lambda *_, **__: None
        )
        self.told: list[str] = []

    async def settle(self, host: str = HOST, name: str = "hall-1") -> bool:
        config = GatewayConfig(host=host, own_node_dir=str(self.place), own_node_name=name)
        enrolment = self.desk.enrolment if config.is_tls else None
        trust = self.gateway if config.is_tls else None
        has_one = await settle_own_node(config, "Hall-9.example", trust, enrolment, self.report)
        self.desk.roll.is_own_plain = not has_one
        return has_one

    def report(self, event: str, **facts: object) -> None:
        self.told.append(f"{event} {facts}")

    @property
    def key(self) -> bytes:
        return (self.trust / "node.key").read_bytes()


def at_home(folder: Path, story: Callable[[House], Awaitable[None]]) -> None:
    async def at(desk: Desk) -> None:
        await story(House(desk, folder))

    at_desk(folder, at)


def test_the_own_node_gets_a_certificate_for_a_key_of_its_own(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        assert await house.settle()
        member = read_membership(house.trust)
        assert (member.cluster, member.name, member.is_own) == (CLUSTER, "hall-1", True)
        authority = (house.trust / "ca.pem").read_bytes()
        assert authority == house.gateway.authority.pem
        check_issued((house.trust / "node.pem").read_bytes(), house.key, authority)
        assert house.key != house.gateway.files.key.read_bytes()
        assert (house.trust / "node.key").stat().st_mode & 0o777 == 0o600
        assert house.trust.stat().st_mode & 0o777 == 0o700
        binding = house.desk.roll.binding(member.node_id)
        assert binding is not None
        assert binding.is_own
        (line,) = await house.desk.audited("node.enrol")
        assert (line.kind, line.target) == ("gateway", member.node_id)

    at_home(tmp_path, story)


def test_its_name_is_the_hosts_where_none_was_chosen(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        assert await house.settle(name="")
        assert read_membership(house.trust).name == "hall-9"

    at_home(tmp_path, story)


def test_on_loopback_it_goes_without_and_comes_back_with_the_same_key(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        assert await house.settle()
        before, key = read_membership(house.trust), house.key
        roll = house.desk.roll
        assert roll.is_certified(before.node_id)
        with pytest.raises(Denied, match="joined with a certificate"):
            roll.check_claim(LOCAL, before.node_id)
        assert not await house.settle("127.0.0.1")
        assert not has_joined(house.trust)
        assert not roll.is_certified(before.node_id)
        roll.check_claim(LOCAL, before.node_id)
        with pytest.raises(Denied, match="joined with a certificate"):
            roll.check_claim(Peer("10.0.0.9"), before.node_id)
        assert await house.settle()
        assert (read_membership(house.trust).node_id, house.key) == (before.node_id, key)
        assert len(await house.desk.audited("node.enrol")) == 1

    at_home(tmp_path, story)


def test_without_its_certificate_no_other_joined_id_is_free_on_loopback(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        await house.desk.join(new_key_pem(), "00000000000000bb")
        assert not await house.settle("127.0.0.1")
        with pytest.raises(Denied, match="joined with a certificate"):
            house.desk.roll.check_claim(LOCAL, "00000000000000bb")

    at_home(tmp_path, story)


def test_a_node_that_runs_is_left_as_it_is(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        with claim_directory(house.place, "din node"):
            assert not await house.settle()
        assert not house.trust.exists()
        assert await house.settle()
        with claim_directory(house.place, "din node"):
            assert await house.settle("127.0.0.1")
        assert has_joined(house.trust)
        assert [each.partition(" {")[0] for each in house.told] == ["own node runs"] * 2

    at_home(tmp_path, story)


def test_a_node_that_was_joined_by_a_token_is_left_as_it_is(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        house.trust.mkdir(parents=True)
        member = Membership(
            cluster="elsewhere", node_id="aa" * 8, gateways=(), signing_key="", begins_ms=0,
            ends_ms=0,
        )  # fmt: skip
        write_membership(house.trust, member)
        for host in (HOST, "127.0.0.1"):
            assert await house.settle(host)
            assert read_membership(house.trust) == member

    at_home(tmp_path, story)


def test_its_id_stays_with_its_first_key_and_out_once_revoked(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        assert await house.settle()
        member, key = read_membership(house.trust), house.key
        (house.trust / "cluster.json").unlink()
        (house.trust / "node.key").unlink()
        assert not await house.settle()
        assert "held by another key" in house.told[-1]
        write_atomically(house.trust / "node.key", key, mode=0o600)
        assert await house.settle()
        await house.desk.roll.revoke(member.node_id, "hall-1")
        (house.trust / "cluster.json").unlink()
        assert not await house.settle()
        assert "was revoked" in house.told[-1]

    at_home(tmp_path, story)


def test_it_keeps_up_with_its_name_and_takes_nobody_elses(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        assert await house.settle()
        await house.desk.join(new_key_pem(), "00000000000000bb")  # edge-1
        assert await house.settle(name="hall-2")
        assert read_membership(house.trust).name == "hall-2"
        assert await house.settle(name="edge-1")
        assert read_membership(house.trust).name == "hall-2"

    at_home(tmp_path, story)


def test_what_it_says_of_itself_counts_as_on_loopback(tmp_path: Path) -> None:
    async def story(house: House) -> None:
        assert await house.settle()
        member = read_membership(house.trust)
        peer = Peer("10.0.0.1", is_tls=True, name=PeerName(CLUSTER, "node", member.node_id))
        asked = NodeProfile(
            node_id=NodeId(member.node_id), session=1, name="hall-1", device_type="x86_64",
            cpu_model="cpu", cpu_isa=(), cpu_cores=1.0, memory_mib=100, backends=(), addresses=(),
            labels={"trust": "high", "line": "4"},
        )  # fmt: skip
        assert house.desk.roll.admitted(peer, asked) == asked

    at_home(tmp_path, story)
