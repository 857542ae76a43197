"""The published vectors of sealed slices, read as another implementation would."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from din.trust.grants import data_key_of, grant_for_node
from din.trust.sealing import open_sealed, parse_header, sealed_pieces, unwrap_by_master
from din.trust.signing import check_signature
from din.wire.statement import Statement, read_statement

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs/protocol/vectors/sealed-slice.json").read_text()
)
MASTER = bytes.fromhex(VECTORS["master_key_hex"])
KEY = bytes.fromhex(VECTORS["data_key_hex"])


def plain_of(vector: dict[str, Any]) -> bytes:
    if "plain_hex" in vector:
        return bytes.fromhex(vector["plain_hex"])
    return bytes(i * 7 % 251 for i in range(vector["plain_nbytes"]))


@pytest.mark.parametrize("vector", VECTORS["files"], ids=lambda each: each["what"])
def test_vectors_seal_and_open_to_the_same_bytes(vector: dict[str, Any]) -> None:
    header = parse_header(bytes.fromhex(vector["header_hex"]))
    assert unwrap_by_master(header, MASTER) == KEY
    plain = plain_of(vector)
    data = b"".join(sealed_pieces(header, KEY, plain))
    assert hashlib.sha256(data).hexdigest() == vector["sealed_sha256"]
    assert data.hex() == vector.get("sealed_hex", data.hex())
    assert data.hex().endswith(vector.get("last_chunk_hex", ""))
    assert open_sealed(data, KEY) == plain


def test_the_published_grant_is_made_and_opened() -> None:
    (vector,) = VECTORS["grants"]
    header = parse_header(bytes.fromhex(VECTORS["files"][0]["header_hex"]))
    node = ec.derive_private_key(int(vector["node_private_scalar"], 16), ec.SECP256R1())
    ephemeral = ec.derive_private_key(int(vector["ephemeral_private_scalar"], 16), ec.SECP256R1())
    grant = grant_for_node(KEY, header, node.public_key(), ephemeral)
    assert grant.hex() == vector["grant_hex"]
    assert data_key_of(grant, header, node) == KEY


@pytest.mark.parametrize("vector", VECTORS["statements"], ids=lambda each: each["what"])
def test_published_statements_are_canonical_and_signed(vector: dict[str, Any]) -> None:
    statement = vector["statement"].encode()
    check_signature(VECTORS["signing_key"], statement, bytes.fromhex(vector["signature_hex"]))
    read = json.loads(statement)
    assert set(read) == set(Statement.__struct_fields__)
    again = json.dumps(read, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    assert again.encode() == statement
    assert read_statement(statement).model_id == read["model_id"]
