"""Which key holds which node id, who may speak for it, and what a join gives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from enrolment_desk import (
    CLUSTER,
    MACHINE,
    NODE_ID,
    OTHER_ID,
    Desk,
    at_desk,
    named,
)
from msgspec.structs import replace

from din.domain.node import NodeId, NodeProfile
from din.domain.trust import Peer, PeerName
from din.errors import Busy, Denied, Unavailable
from din.gateway.nodes import roll as roll_module
from din.gateway.nodes.roll import Binding, Roll

KEY, OTHER_KEY = "11" * 32, "22" * 32
LOCAL = Peer("127.0.0.1")
BOUND = Binding(KEY, "edge-1", {"line": "4", "trust": "high"}, b"der")


def profile(node_id: str = NODE_ID, **labels: str) -> NodeProfile:
    return NodeProfile(
        node_id=NodeId(node_id),
        session=1,
        name="edge-1",
        device_type="x86_64",
        cpu_model="cpu",
        cpu_isa=(),
        cpu_cores=1.0,
        memory_mib=100,
        backends=(),
        addresses=(),
        labels=labels,
    )


async def reread(desk: Desk) -> Roll:
    """The roll of a gateway that has restarted."""
    again = Roll(desk.store, lambda: desk.now_ms)
    await again.load()
    return again


def test_an_id_stays_with_the_first_key_also_after_a_restart(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.roll.bind(NODE_ID, BOUND)
        for roll in (desk.roll, await reread(desk)):
            assert roll.binding(NODE_ID) == BOUND
            assert roll.binding(OTHER_ID) is None
            with pytest.raises(Denied, match="held by another key") as told:
                await roll.bind(NODE_ID, Binding(OTHER_KEY))
            assert "state directory copied" in told.value.hint
        await desk.roll.bind(NODE_ID, replace(BOUND, name="edge-2"))
        found = (await reread(desk)).binding(NODE_ID)
        assert found is not None
        assert found.name == "edge-2"

    at_desk(tmp_path, story)


def test_of_two_gateways_of_one_store_the_first_to_bind_wins(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        other = await reread(desk)
        await desk.roll.bind(NODE_ID, BOUND)
        with pytest.raises(Denied, match="held by another key"):
            await other.bind(NODE_ID, Binding(OTHER_KEY))

    at_desk(tmp_path, story)


def test_what_could_not_be_written_down_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> int:
        raise Unavailable("the disk is full")

    async def story(desk: Desk) -> None:
        await desk.roll.bind(OTHER_ID, Binding(OTHER_KEY))
        with monkeypatch.context() as patched:
            patched.setattr(desk.store, "put", full)
            with pytest.raises(Unavailable):
                await desk.roll.bind(NODE_ID, BOUND)
            with pytest.raises(Unavailable):
                await desk.roll.revoke(OTHER_ID, "edge-2")
        assert desk.roll.binding(NODE_ID) is None
        assert not desk.roll.is_revoked(OTHER_ID)

    at_desk(tmp_path, story)


def test_no_more_machines_are_bound_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll_module, "NODES_MAX", 1)

    async def story(desk: Desk) -> None:
        await desk.roll.bind(NODE_ID, BOUND)
        with pytest.raises(Busy, match="1 machines have joined"):
            await desk.roll.bind(OTHER_ID, Binding(OTHER_KEY))
        await desk.roll.bind(NODE_ID, BOUND)

    at_desk(tmp_path, story)


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        (named(), ""),
        (named(OTHER_ID), "cannot speak for node"),
        (replace(MACHINE, name=PeerName(CLUSTER, "gateway", NODE_ID)), "cannot speak for node"),
        (MACHINE, "showed no certificate"),
        (LOCAL, "joined with a certificate"),
        (Peer("10.0.0.9"), "joined with a certificate"),
    ],
)
def test_only_its_certificate_speaks_for_a_node_that_joined(
    peer: Peer, words: str, tmp_path: Path
) -> None:
    async def story(desk: Desk) -> None:
        await desk.roll.bind(NODE_ID, BOUND)
        if not words:
            desk.roll.check_claim(peer, NODE_ID)
            return
        with pytest.raises(Denied, match=words):
            desk.roll.check_claim(peer, NODE_ID)

    at_desk(tmp_path, story)


def test_an_id_that_nobody_joined_with_is_free_on_this_machine(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        desk.roll.check_claim(LOCAL, NODE_ID)
        assert desk.roll.admitted(LOCAL, profile(trust="high")).labels == {"trust": "high"}

    at_desk(tmp_path, story)


def test_labels_are_those_of_the_join_over_its_own_and_trust_is_never_its_own(
    tmp_path: Path,
) -> None:
    async def story(desk: Desk) -> None:
        own = profile(line="9", colour="red", trust="high")
        far = desk.roll.admitted(named(), own)
        assert far.labels == {"line": "9", "colour": "red"}
        assert desk.roll.admitted(Peer("10.0.0.9"), own).labels == far.labels
        await desk.roll.bind(NODE_ID, BOUND)
        joined = desk.roll.admitted(named(), profile(line="9", colour="red", trust="low"))
        assert joined.labels == {"line": "4", "colour": "red", "trust": "high"}

    at_desk(tmp_path, story)


def test_who_was_revoked_is_out_whatever_it_shows_and_stays_out(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.roll.bind(NODE_ID, BOUND)
        assert await desk.roll.revoke(NODE_ID, "edge-1")
        assert not await desk.roll.revoke(NODE_ID, "another name")
        for roll in (desk.roll, await reread(desk)):
            assert roll.is_revoked(NODE_ID)
            assert roll.refusal_of(NODE_ID) == "the node was revoked"
            assert roll.thrown_out() == (NODE_ID,)
            for peer in (named(), LOCAL, MACHINE):
                with pytest.raises(Denied, match="node edge-1 was revoked") as told:
                    roll.check_claim(peer, NODE_ID)
                assert "new token" in told.value.hint
            with pytest.raises(Denied, match="was revoked"):
                await roll.bind(NODE_ID, BOUND)
        assert desk.roll.refusal_of(OTHER_ID) == ""

    at_desk(tmp_path, story)


def test_a_name_stays_with_the_machine_that_joined_with_it(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.roll.bind(NODE_ID, BOUND)
        await desk.roll.bind(OTHER_ID, Binding(OTHER_KEY, "edge-1"))
        for roll in (desk.roll, await reread(desk)):
            assert roll.owner_of("edge-1") == NODE_ID
            assert roll.names()[NODE_ID] == "edge-1"
            assert roll.owner_of("edge-1-0000") == OTHER_ID
        await desk.roll.bind(NODE_ID, replace(BOUND, name="edge-2"))
        assert (desk.roll.owner_of("edge-1"), desk.roll.owner_of("edge-2")) == ("", NODE_ID)
        await desk.roll.revoke(NODE_ID, "edge-2")
        for roll in (desk.roll, await reread(desk)):
            assert roll.owner_of("edge-2") == ""

    at_desk(tmp_path, story)


def test_two_machines_that_join_at_once_under_one_name_get_two(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await asyncio.gather(
            desk.roll.bind(NODE_ID, BOUND), desk.roll.bind(OTHER_ID, Binding(OTHER_KEY, "edge-1"))
        )
        for roll in (desk.roll, await reread(desk)):
            assert roll.names() == {NODE_ID: "edge-1", OTHER_ID: "edge-1-0000"}

    at_desk(tmp_path, story)


def test_what_is_taken_back_while_a_machine_joins_anew_is_no_older_entry(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.roll.bind(NODE_ID, BOUND)
        anew = replace(BOUND, name="edge-9", labels={"line": "5", "trust": "high"})
        await asyncio.gather(
            desk.roll.bind(NODE_ID, anew), desk.roll.take_labels(NODE_ID, ["trust"])
        )
        for roll in (desk.roll, await reread(desk)):
            binding = roll.binding(NODE_ID)
            assert binding is not None
            assert (binding.name, binding.labels) == ("edge-9", {"line": "5"})

    at_desk(tmp_path, story)
