"""Keys, slices and trust folders for tests of signing and sealing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from din.domain.model import Artifact, Slice
from din.trust.grants import grant_for_node
from din.trust.requests import pem_of_key
from din.trust.sealing import (
    new_header,
    open_master_key,
    parse_header,
    sealed_pieces,
    sha256_hex,
    unwrap_by_master,
)
from din.trust.signing import open_signing_key
from din.wire.statement import statement_of


class Home:
    """A gateway's trust folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = open_master_key(folder)
        self.signing = open_signing_key(folder)

    def seal(self, plain: bytes) -> tuple[bytes, Artifact]:
        key = hashlib.sha256(plain).digest()
        header = new_header(self.master, key, sha256_hex(plain), len(plain), "aes-256-gcm")
        data = b"".join(sealed_pieces(header, key, plain))
        return data, Artifact(sha256_hex(data), len(data), "model", sha256_hex(plain), len(plain))

    def grant(self, sealed: bytes, recipient: ec.EllipticCurvePublicKey) -> bytes:
        header = parse_header(sealed)
        return grant_for_node(unwrap_by_master(header, self.master), header, recipient)

    def sign(
        self, part: Slice, model_id: str = "m", options: dict[str, str] | None = None
    ) -> bytes:
        return self.signing.sign(statement_of(model_id, part, options or {}))

    def enrol(self, folder: Path) -> ec.EllipticCurvePublicKey:
        """Make a node's trust folder as a join leaves it; its public key."""
        folder.mkdir(mode=0o700, parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        path = folder / "node.key"
        path.touch(mode=0o600)
        path.write_bytes(pem_of_key(key))
        cluster = {"cluster": "c", "signing_key": self.signing.public_text}
        (folder / "cluster.json").write_bytes(msgspec.json.encode(cluster))
        return key.public_key()


def slice_of(*artifacts: Artifact) -> Slice:
    return Slice(
        index=0, slice_id="cd" * 32, name="whole", artifacts=artifacts, inputs=(), outputs=()
    )
