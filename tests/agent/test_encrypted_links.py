"""Real agents with certificates: what travels between them, and who gets no link."""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path
from typing import Any

import onnx_models
import pytest
from agent_gateway import CLUSTER, GATEWAY_ID, FakeGateway, Node, make_slice

from din.domain.enrolment import Membership
from din.domain.trust import PeerName
from din.errors import Unreachable
from din.system.clock import wall_clock_ms
from din.system.identity import claim_directory
from din.transport.dial import dial, ignore_reports
from din.transport.membership import write_membership
from din.transport.server import LinkServer
from din.transport.tls import files_in
from din.transport.tls_identity import TlsIdentity
from din.wire.messages import Prepared, Result, ThrownOut

sys.path.insert(0, str(Path(__file__).parents[1] / "transport"))
from forwarder import Forwarder, forwarding
from link_harness import Recorder
from test_program import CHAIN_EDGES, ONES, X, chain_part
from tls_machines import authority_in, machine

pytestmark = pytest.mark.system


def node_id_in(folder: Path) -> str:
    """The id that an agent with this state directory will have."""
    with claim_directory(folder, "test") as claim:
        return claim.next_identity().node_id


def enrol(folder: Path, node: Node, signing_key: str = "") -> None:
    node.folder.mkdir()
    name = PeerName(CLUSTER, "node", node_id_in(node.folder))
    machine(node.folder / "trust", authority_in(folder / "authority", CLUSTER), name)
    now_ms = wall_clock_ms()
    membership = Membership(
        cluster=CLUSTER,
        node_id=name.id,
        gateways=(),
        begins_ms=now_ms,
        ends_ms=now_ms + 86_400_000,
        signing_key=signing_key,
    )
    write_membership(node.folder / "trust", membership)


def encrypt(gateway: FakeGateway, folder: Path) -> TlsIdentity:
    """Let the gateway be reached by TCP with a certificate, and by nothing else."""
    name = PeerName(CLUSTER, "gateway", GATEWAY_ID)
    files = machine(folder / "g-trust", authority_in(folder / "authority", CLUSTER), name)
    identity = TlsIdentity(files, CLUSTER, ignore_reports)
    gateway.server.close()
    gateway.server = LinkServer(GATEWAY_ID, 1, gateway, tls=identity)
    gateway.links_at = [f"tcp:127.0.0.1:{gateway.server.listen_tcp('127.0.0.1', 0)}"]
    return identity


async def run_chain(gateway: FakeGateway, first: Node, second: Node) -> Forwarder:
    """Tensors from the gateway to one node, over a recorded wire to the other, and back."""
    tcp = next(each for each in second.addresses if each.startswith("tcp:"))
    async with forwarding(tcp) as wire:
        one = make_slice(0, gateway.artifact(onnx_models.double()))
        two = make_slice(1, gateway.artifact(chain_part()), ("y", "z"))
        # The other side dials nobody, so that all goes over the wire.
        peers = {first.node_id: (), second.node_id: (wire.address,)}
        gateway.prepare(second.node_id, two, CHAIN_EDGES, peers=peers)
        await gateway.message(Prepared, second.node_id)
        gateway.prepare(first.node_id, one, CHAIN_EDGES, peers=peers)
        prepared, _, _ = await gateway.message(Prepared, first.node_id)
        assert prepared.undialable == ()
        gateway.run(first.node_id, (first.node_id, second.node_id), {"x": (X, ONES)})
        _, body, _ = await gateway.message(Result)
        assert struct.unpack("<4f", body[:16]) == (4, 8, 12, 16)
    return wire


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_whoever_records_the_wire_between_two_nodes_reads_no_tensor(
    tmp_path: Path, is_encrypted: bool
) -> None:
    between = struct.pack("<4f", 2, 4, 6, 8)

    async def main() -> None:
        async with FakeGateway(tmp_path) as gateway:
            nodes = Node(tmp_path, "a", gateway), Node(tmp_path, "b", gateway)
            if is_encrypted:
                encrypt(gateway, tmp_path)
                for node in nodes:
                    enrol(tmp_path, node)
            async with nodes[0] as first, nodes[1] as second:
                for node in nodes:
                    # This gateway signs nothing; what links carry is the matter here.
                    (node.folder / "trust" / "cluster.json").unlink(missing_ok=True)
                wire = await run_chain(gateway, first, second)
                assert (between in wire.passed["there"]) is not is_encrypted
                assert (b"HELLO" in wire.passed["there"]) is not is_encrypted
                assert len(wire.passed["there"]) > 200

    asyncio.run(main())


def test_a_node_of_the_cluster_that_no_deployment_names_gets_no_link(tmp_path: Path) -> None:
    stranger = PeerName(CLUSTER, "node", "0123456789abcdef")

    async def main() -> None:
        async with FakeGateway(tmp_path) as gateway:
            gateway_identity = encrypt(gateway, tmp_path)
            node = Node(tmp_path, "a", gateway)
            enrol(tmp_path, node)
            files = machine(tmp_path / "s", authority_in(tmp_path / "authority", CLUSTER), stranger)
            identity = TlsIdentity(files, CLUSTER, ignore_reports)
            async with node:
                tcp = [each for each in node.addresses if each.startswith("tcp:")]
                cases = (
                    (identity, stranger.id, "no deployment on this node names '0123"),
                    (identity, GATEWAY_ID, "your certificate names"),
                    (None, stranger.id, "links are encrypted here"),
                    # A node dials its gateway: whoever comes under that name is none, or a copy.
                    (gateway_identity, GATEWAY_ID, "this node dials its gateway"),
                )
                for tls, own_id, reason in cases:
                    with pytest.raises(Unreachable, match=reason):
                        await dial(
                            tcp, own_id=own_id, session=1, handler=Recorder(), target_role="node",
                            target_id=node.node_id, tls=tls,
                        )  # fmt: skip
                await node.stop()
                assert len(node.events("link refused")) >= 4

    asyncio.run(main())


def test_a_node_that_is_revoked_loses_its_links_to_other_nodes_and_gets_none_again(
    tmp_path: Path,
) -> None:
    """Sent while a deployment still names it, and before any other order comes."""

    async def main() -> None:
        async with FakeGateway(tmp_path) as gateway:
            encrypt(gateway, tmp_path)
            nodes = Node(tmp_path, "a", gateway), Node(tmp_path, "b", gateway)
            for node in nodes:
                enrol(tmp_path, node)
            async with nodes[0] as first, nodes[1] as second:
                for node in nodes:
                    (node.folder / "trust" / "cluster.json").unlink()
                one = make_slice(0, gateway.artifact(onnx_models.double()))
                two = make_slice(1, gateway.artifact(chain_part()), ("y", "z"))
                tcp = tuple(each for each in second.addresses if each.startswith("tcp:"))
                # The other side dials nobody, so that there is one link.
                peers = {first.node_id: (), second.node_id: tcp}
                gateway.prepare(second.node_id, two, CHAIN_EDGES, peers=peers)
                await gateway.message(Prepared, second.node_id)
                gateway.prepare(first.node_id, one, CHAIN_EDGES, peers=peers)
                prepared, _, _ = await gateway.message(Prepared, first.node_id)
                assert prepared.undialable == ()
                gateway.links[first.node_id].send(ThrownOut((second.node_id,)))
                for node, peer in ((first, second), (second, first)):
                    lost = await lost_links(node)
                    assert [each["peer"] for each in lost] == [peer.node_id]
                assert lost_in(first)[0]["reason"] == "the node was revoked"
                files = files_in(second.folder / "trust", "node")
                tcp = [each for each in first.addresses if each.startswith("tcp:")]
                with pytest.raises(Unreachable, match="was revoked"):
                    await dial(
                        tcp, own_id=second.node_id, session=9, handler=Recorder(),
                        target_role="node", target_id=first.node_id,
                        tls=TlsIdentity(files, CLUSTER, ignore_reports),
                    )  # fmt: skip
                # What was ordered before, said again: it is not dialled, and that is told.
                gateway.prepare(first.node_id, one, CHAIN_EDGES, peers=peers)
                prepared, _, _ = await gateway.message(Prepared, first.node_id, 1)
                assert prepared.undialable == (second.node_id,)

    asyncio.run(main())


def lost_in(node: Node) -> list[dict[str, Any]]:
    return node.events("peer_link_lost")


async def lost_links(node: Node) -> list[dict[str, Any]]:
    async with asyncio.timeout(40):
        while not (lost := lost_in(node)):  # noqa: ASYNC110 (lines come by a pipe)
            await asyncio.sleep(0.01)
    return lost
