"""Grants: the data key of one sealed file for one node, as PREPARE carries it.

    1  for the key of the node's certificate: ephemeral P-256 point, then the data key under what
       ECDH and HKDF-SHA256 make of both
    2  for a node of the gateway's own user on the gateway's own machine: where the master key lies

The second kind hands nothing over: who can read that file has the key already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from din.errors import BadModel, Denied
from din.trust.sealing import KEY_BYTES, TAG_BYTES, Header, read_master_key, unwrap_by_master

FOR_NODE: Final = 1
FOR_MACHINE: Final = 2
GRANT_BYTES_MAX: Final = 4096
POINT_BYTES: Final = 65
INFO: Final = b"DIN grant 1\0"
_CURVE: Final = ec.SECP256R1()
# One ephemeral key makes one wrapping key, which encrypts once: its nonce need not vary.
_NONCE: Final = bytes(12)


def grant_for_node(
    data_key: bytes,
    header: Header,
    recipient: ec.EllipticCurvePublicKey,
    ephemeral: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    """The data key for the owner of a P-256 key; opens this very file and no other."""
    ephemeral = ephemeral or ec.generate_private_key(_CURVE)
    point = _point(ephemeral.public_key())
    key = _wrapping_key(ephemeral.exchange(ec.ECDH(), recipient), point, _point(recipient))
    return bytes((FOR_NODE,)) + point + AESGCM(key).encrypt(_NONCE, data_key, header.facts)


def grant_for_machine(master_path: Path) -> bytes:
    """Where a program of the same user on the same machine finds the master key."""
    return bytes((FOR_MACHINE,)) + str(master_path).encode()


def data_key_of(grant: bytes, header: Header, own_key: ec.EllipticCurvePrivateKey | None) -> bytes:
    """The data key of a sealed file. Raises Denied when the grant is not for us or not for this
    file, BadModel when it is no grant at all."""
    if not grant:
        raise Denied("the gateway granted this node no key", hint="see `din plan MODEL`")
    if len(grant) > GRANT_BYTES_MAX:
        raise BadModel(f"a grant of {len(grant)} bytes, at most {GRANT_BYTES_MAX} are read")
    if grant[0] == FOR_MACHINE:
        return unwrap_by_master(header, read_master_key(Path(grant[1:].decode(errors="replace"))))
    if grant[0] != FOR_NODE or len(grant) != 1 + POINT_BYTES + KEY_BYTES + TAG_BYTES:
        raise BadModel(f"a grant of kind {grant[0]} with {len(grant)} bytes cannot be read")
    if own_key is None:
        raise Denied(
            "the grant is for a node with a certificate and this one has none",
            hint="join the cluster: din node join -",
        )
    point = grant[1 : 1 + POINT_BYTES]
    try:
        peer = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, point)
    except ValueError:
        raise BadModel("the grant holds no point of P-256") from None
    key = _wrapping_key(own_key.exchange(ec.ECDH(), peer), point, _point(own_key.public_key()))
    try:
        return AESGCM(key).decrypt(_NONCE, grant[1 + POINT_BYTES :], header.facts)
    except InvalidTag:
        raise Denied(
            "the grant opens nothing here: it is for another node or another file",
            hint="if this node joined anew, restart it",
        ) from None


def _wrapping_key(shared: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    info = INFO + ephemeral + recipient
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(shared)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
