"""Sealed files: what opens, and everything that must not."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from din.errors import BadModel, Denied, TooLarge
from din.trust.grants import data_key_of, grant_for_machine, grant_for_node
from din.trust.sealing import (
    CHUNK_BYTES,
    HEADER_BYTES,
    PLAIN_BYTES_MAX,
    TAG_BYTES,
    Algorithm,
    Header,
    algorithm_for,
    new_data_key,
    new_header,
    open_master_key,
    open_sealed,
    parse_header,
    sealed_pieces,
    sha256_hex,
    unwrap_by_master,
)

MASTER = bytes(range(32))
KEY = bytes(range(32, 64))
PLAIN = os.urandom(2 * CHUNK_BYTES + 777)
ROOM = CHUNK_BYTES + TAG_BYTES
ALGORITHMS: tuple[Algorithm, ...] = ("aes-256-gcm", "chacha20-poly1305")


def header_of(plain: bytes, algorithm: Algorithm = "aes-256-gcm") -> Header:
    return new_header(MASTER, KEY, sha256_hex(plain), len(plain), algorithm)


def sealed(plain: bytes, algorithm: Algorithm = "aes-256-gcm") -> bytes:
    return b"".join(sealed_pieces(header_of(plain, algorithm), KEY, plain))


SEALED = sealed(PLAIN)
CHUNKS = [SEALED[HEADER_BYTES + i * ROOM :][:ROOM] for i in range(3)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_what_was_sealed_opens(algorithm: Algorithm, size: int) -> None:
    plain = PLAIN[:size]
    data = sealed(plain, algorithm)
    header = parse_header(data)
    assert len(data) == header.nbytes
    assert open_sealed(data, unwrap_by_master(header, MASTER)) == plain
    assert plain[:64] not in data or size < 64


def test_two_sealings_of_the_same_content_have_nothing_in_common() -> None:
    other = sealed(PLAIN)
    assert other[HEADER_BYTES:][:64] != SEALED[HEADER_BYTES:][:64]


BROKEN = {
    "cut short in a chunk": SEALED[:-1],
    "cut short by a chunk": SEALED[: HEADER_BYTES + 2 * ROOM],
    "longer": SEALED + b"\0",
    "header only": SEALED[:HEADER_BYTES],
    "chunks in another order": SEALED[:HEADER_BYTES] + CHUNKS[1] + CHUNKS[0] + CHUNKS[2],
    "a chunk twice": SEALED[:HEADER_BYTES] + CHUNKS[0] + CHUNKS[0] + CHUNKS[2],
    "empty": b"",
    "plain": PLAIN,
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_put_together_anew_does_not_open(case: str) -> None:
    with pytest.raises(BadModel):
        open_sealed(BROKEN[case], KEY)


@pytest.mark.parametrize("at", [*range(HEADER_BYTES), HEADER_BYTES, HEADER_BYTES + ROOM, -1])
def test_one_changed_bit_anywhere_does_not_open(at: int) -> None:
    changed = bytearray(SEALED)
    changed[at] ^= 1
    with pytest.raises((BadModel, TooLarge)):
        open_sealed(changed, KEY)


def test_a_chunk_of_another_file_does_not_open() -> None:
    other = sealed(PLAIN)
    mixed = SEALED[:-ROOM] + other[-ROOM:]
    with pytest.raises(BadModel, match="chunk"):
        open_sealed(mixed, KEY)


def test_a_shorter_file_that_says_so_does_not_open() -> None:
    header = parse_header(SEALED)
    shorter = msgspec.structs.replace(header, plain_nbytes=2 * CHUNK_BYTES)
    with pytest.raises(BadModel, match="chunk 0"):
        open_sealed(shorter.data + CHUNKS[0] + CHUNKS[1], KEY)


def test_another_master_key_is_refused() -> None:
    header = header_of(PLAIN)
    with pytest.raises(Denied, match="another master key"):
        unwrap_by_master(header, bytes(32))
    moved = msgspec.structs.replace(header, plain_nbytes=1)
    with pytest.raises(Denied):
        unwrap_by_master(moved, MASTER)


def test_the_master_key_is_made_once_and_is_for_its_owner_only(tmp_path: Path) -> None:
    assert open_master_key(tmp_path) == open_master_key(tmp_path)
    path = tmp_path / "sealing.key"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o604)
    with pytest.raises(Denied, match="mode 0604"):
        open_master_key(tmp_path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(Denied, match="5 bytes"):
        open_master_key(tmp_path)


def test_an_empty_or_a_huge_file_is_not_sealed() -> None:
    with pytest.raises(BadModel, match="empty"):
        new_header(MASTER, KEY, "00" * 32, 0, "aes-256-gcm")
    with pytest.raises(TooLarge):
        new_header(MASTER, KEY, "00" * 32, PLAIN_BYTES_MAX + 1, "aes-256-gcm")


def test_a_processor_without_aes_gets_chacha() -> None:
    assert (algorithm_for(has_aes=True), algorithm_for(has_aes=False)) == ALGORITHMS


# Grants.


def test_a_grant_opens_for_its_node_and_its_file_only() -> None:
    header, node, other = header_of(PLAIN), _key(), _key()
    grant = grant_for_node(KEY, header, node.public_key())
    assert KEY not in grant
    assert data_key_of(grant, header, node) == KEY
    with pytest.raises(Denied, match="another node or another file"):
        data_key_of(grant, header, other)
    with pytest.raises(Denied, match="another node or another file"):
        data_key_of(grant, header_of(PLAIN), node)
    with pytest.raises(Denied, match="this one has none"):
        data_key_of(grant, header, None)


def test_a_node_of_the_same_user_reads_the_master_key_where_it_lies(tmp_path: Path) -> None:
    master = open_master_key(tmp_path)
    key = new_data_key()
    header = new_header(master, key, sha256_hex(PLAIN), len(PLAIN), "aes-256-gcm")
    grant = grant_for_machine(tmp_path / "sealing.key")
    assert data_key_of(grant, header, None) == key
    (tmp_path / "sealing.key").chmod(0o644)
    with pytest.raises(Denied, match="mode 0644"):
        data_key_of(grant, header, None)


@pytest.mark.parametrize("grant", [b"\1short", b"\3" * 114, b"\1" + bytes(113), b"\2" * 5000])
def test_a_malformed_grant_is_refused(grant: bytes) -> None:
    with pytest.raises(BadModel):
        data_key_of(grant, header_of(PLAIN), _key())
    with pytest.raises(Denied, match="granted this node no key"):
        data_key_of(b"", header_of(PLAIN), _key())


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())
