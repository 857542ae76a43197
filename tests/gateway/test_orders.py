"""What nodes are told of slices: signature, grant, lease, and who gets none."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from gateway_fakes import part_of
from msgspec.structs import replace

from din.artifacts.files import ArtifactFolder
from din.domain.deployment import Deployment, Epoch
from din.domain.model import GATEWAY, Artifact, Edge, ModelManifest, Partition
from din.domain.node import NodeId
from din.domain.views import RegisterModel
from din.errors import CannotPlace
from din.flow.timeout import Timeouts
from din.gateway.deployment.holding import Holding
from din.gateway.deployment.orders import Orders
from din.gateway.registration.record import ModelRecord
from din.gateway.routes.serving import Serving
from din.gateway.trust.vault import Vault
from din.trust.grants import data_key_of
from din.trust.requests import public_key_bytes
from din.trust.sealing import open_sealed, parse_header
from din.trust.signing import check_signature
from din.wire.messages import AnyMessage, Renew
from din.wire.statement import statement_of

HOME, FAR, BARE = (NodeId(each * 16) for each in "abc")
PLAIN = b"content of a slice"
EDGES = (Edge("x", GATEWAY, (0,)), Edge("y", 0, (GATEWAY,)))
LEASE_MS = 8_000


class Shop:
    """Keys, one sealed slice, three nodes. Implements orders.Keyholders and relay.Sender."""

    def __init__(self, folder: Path) -> None:
        self.vault = Vault(folder / "trust", is_signing=True, lease_ms=LEASE_MS)
        self.artifacts = ArtifactFolder(folder / "artifacts", 1 << 20)
        self.keys = {FAR: ec.generate_private_key(ec.SECP256R1())}
        self.trusted: set[NodeId] = set()
        self.sent: list[tuple[str, AnyMessage]] = []
        source = folder / "plain"
        source.write_bytes(PLAIN)
        with source.open("rb") as file:
            sha256 = hashlib.sha256(PLAIN).hexdigest()
            self.artifact = self.vault.seal(file.fileno(), sha256, folder / "sealed")
        self.artifacts.adopt(folder / "sealed", self.artifact.sha256)
        part = part_of(0, EDGES, artifacts=(self.artifact,), is_sensitive=True)
        partition = Partition(slices=(part,), edges=EDGES)
        manifest = ModelManifest(
            model_id="m", version="1", source_sha256="", inputs=part.inputs, outputs=part.outputs
        )
        record = ModelRecord(
            manifest=manifest, partition=partition, cuts=(), order_sha256="",
            order=RegisterModel(model_id="m", source_sha256=""),
        )  # fmt: skip
        deployment = Deployment(epoch=Epoch(1, 1), manifest=manifest, partition=partition)
        self.holding = Holding(record, Serving(deployment, Timeouts()))
        self.orders = Orders(self.vault, self.artifacts, self, lambda *_: (), lambda _: "http://g/")

    def is_local(self, node_id: NodeId) -> bool:
        return node_id == HOME

    def is_trusted(self, node_id: NodeId) -> bool:
        return node_id in self.trusted

    def public_key(self, node_id: NodeId) -> bytes | None:
        key = self.keys.get(node_id)
        return public_key_bytes(key.public_key()) if key is not None else None

    def send(self, node_id: str, message: AnyMessage, body: object = ()) -> bool:
        self.sent.append((node_id, message))
        return True


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.parametrize("node_id", [HOME, FAR])
def test_a_node_is_told_what_it_can_verify_and_open(shop: Shop, node_id: NodeId) -> None:
    order = shop.orders.prepare(shop.holding, 0, node_id)
    statement = statement_of(order.model_id, order.slice, order.backend_options)
    check_signature(shop.vault.signing_key, statement, order.signature)
    data = shop.artifacts.file(shop.artifact.sha256).read_bytes()
    key = data_key_of(order.grant, parse_header(data), shop.keys.get(node_id))
    assert open_sealed(data, key) == PLAIN
    assert order.lease_ms == LEASE_MS


def test_each_file_of_a_slice_has_a_grant_of_its_own(shop: Shop, tmp_path: Path) -> None:
    weights = bytes(1000)
    source, sealed = tmp_path / "weights", tmp_path / "sealed-weights"
    source.write_bytes(weights)
    with source.open("rb") as file:
        made = shop.vault.seal(file.fileno(), hashlib.sha256(weights).hexdigest(), sealed)
    shop.artifacts.adopt(sealed, made.sha256)
    open_file = Artifact("ef" * 32, 7, "weights")
    files = (shop.artifact, open_file, replace(made, role="weights"))
    part = replace(shop.holding.partition.slices[0], artifacts=files)
    partition = replace(shop.holding.partition, slices=(part,))
    shop.holding.record = replace(shop.holding.record, partition=partition)
    order = shop.orders.prepare(shop.holding, 0, FAR)
    for index, content in ((0, PLAIN), (2, weights)):
        data = shop.artifacts.file(files[index].sha256).read_bytes()
        key = data_key_of(order.grant_of(index), parse_header(data), shop.keys[FAR])
        assert open_sealed(data, key) == content
    assert [order.grant_of(index) for index in (-1, 1, 3)] == [b"", b"", b""]


def test_a_node_without_a_certificate_or_with_a_revoked_one_is_granted_nothing(shop: Shop) -> None:
    assert shop.orders.takes_grants(FAR)
    del shop.keys[FAR]
    for node_id in (FAR, BARE):
        assert not shop.orders.takes_grants(node_id)
        with pytest.raises(CannotPlace, match="no certificate"):
            shop.orders.prepare(shop.holding, 0, node_id)


def test_leases_are_renewed_four_times_each_and_not_for_a_revoked_node(shop: Shop) -> None:
    for node_id in (HOME, FAR):
        shop.holding.assign(0, node_id, 0)
    times = [0, 1, 1_999, 2_000, 3_999, 4_000]
    for now_ms in times:
        shop.orders.renew(shop.holding, shop, now_ms)
    assert shop.sent == [(node, Renew(Epoch(1, 1), LEASE_MS)) for node in (HOME, FAR)] * 3
    shop.sent.clear()
    del shop.keys[FAR]
    shop.orders.renew(shop.holding, shop, 9_000)
    assert [node for node, _ in shop.sent] == [HOME]


def test_a_sensitive_slice_may_stay_while_its_node_is_trusted(shop: Shop) -> None:
    shop.holding.assign(0, FAR, 0)
    assert not shop.orders.may_hold(shop.holding, FAR)
    shop.trusted.add(FAR)
    assert shop.orders.may_hold(shop.holding, FAR)
    assert shop.orders.may_hold(shop.holding, BARE), "it holds nothing"
