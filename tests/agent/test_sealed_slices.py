"""A joined node with signed and sealed slices: what it loads, refuses, and lets go."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import onnx_models
import psutil
import pytest
from agent_gateway import EPOCH, FakeGateway, Node, make_slice
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from din.domain.model import GATEWAY, AdapterSpec, Edge, Slice
from din.domain.tensor import TensorMeta, TensorSpec
from din.trust.grants import grant_for_machine
from din.trust.requests import load_key
from din.wire.messages import Prepare, Prepared, PrepareFailed, Renew, Result, WorkerDied
from tests.agent.test_encrypted_links import enrol
from tests.vault_files import Home

EDGES = (Edge("x", GATEWAY, (0,)), Edge("y", 0, (GATEWAY,)))
X = TensorMeta("x", "FP32", (1, 4), 16)
ONES = struct.pack("<4f", 1, 2, 3, 4)

MARKER = b"plain-content-of-the-model"

Story = Callable[["Cluster"], Coroutine[Any, Any, None]]


class Cluster:
    """A gateway with keys and one node that joined it."""

    def __init__(self, gateway: FakeGateway, folder: Path, *, is_joined: bool) -> None:
        self.gateway = gateway
        self.home = Home(folder / "gateway-trust")
        self.node = Node(folder, "one", gateway)
        self.public_key: ec.EllipticCurvePublicKey | None = None
        if is_joined:
            enrol(folder, self.node, self.home.signing.public_text)
            key = (self.node.folder / "trust" / "node.key").read_bytes()
            self.public_key = load_key(key).public_key()

    def part(self, *, is_sealed: bool = True) -> tuple[Slice, bytes]:
        """A slice and the grant of its key."""
        # The model's doc_string (field 6), by which its plain bytes are told anywhere.
        plain = onnx_models.double() + bytes((0x32, len(MARKER))) + MARKER
        if not is_sealed:
            return make_slice(0, self.gateway.artifact(plain)), b""
        data, artifact = self.home.seal(plain)
        self.gateway.artifact(data)
        grant = grant_for_machine(self.home.folder / "sealing.key")
        if self.public_key is not None:
            grant = self.home.grant(data, self.public_key)
        return make_slice(0, artifact), grant

    def prepare(
        self,
        part: Slice,
        grant: bytes,
        *,
        signature: bytes | None = None,
        lease_ms: int = 0,
        further: tuple[bytes, ...] = (),
    ) -> None:
        options = {"threads": "1"}
        signed = self.home.sign(part, "test", options) if signature is None else signature
        order = Prepare(
            EPOCH, "test", part, EDGES, (), 1, options, f"{self.gateway.url}/api/v1/artifacts/",
            {}, 30_000, signed, grant, lease_ms, further,
        )  # fmt: skip
        assert self.gateway.links[self.node.node_id].send(order)

    async def refusal(self, nth: int = 0) -> PrepareFailed:
        message, _, _ = await self.gateway.message(PrepareFailed, nth=nth)
        return message

    async def answer(self) -> tuple[float, ...]:
        self.gateway.run(self.node.node_id, (self.node.node_id,), {"x": (X, ONES)})
        _, body, _ = await self.gateway.message(Result)
        return struct.unpack("<4f", body[:16])


def play(folder: Path, story: Story, *, is_joined: bool = True) -> None:
    async def whole() -> None:
        async with FakeGateway(folder) as gateway:
            cluster = Cluster(gateway, folder, is_joined=is_joined)
            async with cluster.node:
                await story(cluster)

    asyncio.run(whole())


def files_with(marker: bytes, folder: Path) -> list[Path]:
    files = [each for each in folder.rglob("*") if each.is_file()]
    return [each for each in files if marker in each.read_bytes()]


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_joined_node_loads_what_its_gateway_signed(tmp_path: Path, is_sealed: bool) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.prepare(*cluster.part(is_sealed=is_sealed))
        await cluster.gateway.message(Prepared)
        assert await cluster.answer() == (2, 4, 6, 8)
        assert bool(files_with(MARKER, cluster.node.folder)) is not is_sealed

    play(tmp_path, story)


def test_sealed_weights_are_opened_beside_their_model(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        weights = struct.pack("<4f", 10, 20, 30, 40) + MARKER
        home, gateway, recipient = cluster.home, cluster.gateway, cluster.public_key
        assert recipient is not None
        sealed_weights, second = home.seal(weights)
        sealed_model, first = home.seal(onnx_models.plus_weight(second.plain_sha256, offset=0))
        for data in (sealed_model, sealed_weights):
            gateway.artifact(data)
        files = (first, replace(second, role="weights"))
        part = replace(make_slice(0, first), artifacts=files)
        grants = home.grant(sealed_model, recipient), home.grant(sealed_weights, recipient)
        cluster.prepare(part, grants[0], further=(grants[0],))
        assert "another file" in (await cluster.refusal()).message
        cluster.prepare(part, grants[0], further=grants[1:])
        await gateway.message(Prepared)
        assert await cluster.answer() == (11, 22, 33, 44)
        assert files_with(MARKER, cluster.node.folder) == []

    play(tmp_path, story)


def test_what_is_not_signed_by_its_gateway_is_never_loaded(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        part, grant = cluster.part()
        options = {"threads": "1"}
        foreign = Home(tmp_path / "foreign")
        swapped = cluster.home.sign(replace(part, slice_id="ab" * 32), "test", options)
        for nth, signature in enumerate((b"", foreign.sign(part, "test", options), swapped)):
            cluster.prepare(part, grant, signature=signature)
            refused = await cluster.refusal(nth)
            assert "signed" in refused.message
            assert refused.code == "DIN-700"
        assert not cluster.node.events("slice_loaded")
        cluster.prepare(part, grant)
        await cluster.gateway.message(Prepared)

    play(tmp_path, story)


def test_an_adapter_that_is_not_signed_is_never_loaded(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        spec = TensorSpec("y", "FP32", (1, 4))
        part = Slice(
            index=0, slice_id="ab" * 32, name="after", kind="after", backend="adapter",
            adapter=AdapterSpec("classify", {}), inputs=(spec,), outputs=(spec,),
        )  # fmt: skip
        cluster.prepare(part, b"", signature=bytes(64))
        assert "not signed" in (await cluster.refusal()).message

    play(tmp_path, story)


def test_a_tampered_file_is_refused_at_a_workers_restart_too(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        part, grant = cluster.part()
        cluster.prepare(part, grant)
        await cluster.gateway.message(Prepared)
        file = cluster.node.folder / "slices" / part.artifacts[0].sha256
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        (worker,) = worker_pids(cluster.node.process.pid)
        os.kill(worker, signal.SIGKILL)
        died, _, _ = await cluster.gateway.message(WorkerDied, nth=1)
        assert "does not open" in died.death.reason

    play(tmp_path, story)


def test_a_grant_for_another_node_is_refused(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        part, _ = cluster.part()
        stranger = cluster.home.enrol(tmp_path / "stranger")
        data = cluster.gateway.artifacts[part.artifacts[0].sha256]
        cluster.prepare(part, cluster.home.grant(data, stranger))
        assert "another node" in (await cluster.refusal()).message
        cluster.prepare(part, b"")
        assert "no key" in (await cluster.refusal(1)).message

    play(tmp_path, story)


def test_a_slice_is_held_as_long_as_its_lease_and_is_unloaded_then(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.prepare(*cluster.part(), lease_ms=10_000)
        await cluster.gateway.message(Prepared)
        link = cluster.gateway.links[cluster.node.node_id]
        assert link.send(Renew(EPOCH, 600_000))
        assert await cluster.answer() == (2, 4, 6, 8)
        assert link.send(Renew(EPOCH, 1))
        assert "lease of the sealed slice is over" in (await cluster.refusal()).message
        await cluster.gateway.until(lambda: cluster.node.events("slice_unloaded"))
        cluster.prepare(*cluster.part(), lease_ms=600_000)
        await cluster.gateway.message(Prepared, nth=1)

    play(tmp_path, story)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_node_that_never_joined_believes_its_own_users_gateway(
    tmp_path: Path, is_sealed: bool
) -> None:
    async def story(cluster: Cluster) -> None:
        part, grant = cluster.part(is_sealed=is_sealed)
        cluster.prepare(part, grant, signature=b"")
        await cluster.gateway.message(Prepared)
        assert await cluster.answer() == (2, 4, 6, 8)
        assert bool(files_with(MARKER, cluster.node.folder)) is not is_sealed

    play(tmp_path, story, is_joined=False)


def worker_pids(agent: int) -> list[int]:
    """Grandchildren of the agent that are workers."""
    family = psutil.Process(agent).children(recursive=True)
    return [each.pid for each in family if each.name().startswith("din worker")]
