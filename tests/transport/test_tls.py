"""Contexts and names: who is let in and who is not."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from din.domain.trust import PeerName
from din.errors import Denied, Unavailable
from din.system.identity import write_atomically
from din.transport.tls import (
    TlsFiles,
    certificate_end_ms,
    check_peer,
    client_context,
    files_in,
    peer_name,
    pinned_context,
    server_context,
    unverified_context,
)
from din.trust.authority import Authority, open_authority
from din.trust.requests import new_key_pem, public_key_of_request, signing_request

GATEWAY = PeerName("plant", "gateway", "00112233aabbccdd")
NODE = PeerName("plant", "node", "ffeeddccbbaa0099")


def now() -> datetime:
    return datetime.now(UTC)


def machine(folder: Path, authority: Authority, name: PeerName, age: timedelta) -> TlsFiles:
    folder.mkdir(exist_ok=True)
    files = files_in(folder, name.role)
    key = new_key_pem()
    write_atomically(files.key, key, mode=0o600)
    public = public_key_of_request(signing_request(key))
    write_atomically(files.certificate, authority.issue(public, name, now() - age))
    write_atomically(files.authority, authority.pem)
    return files


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ...]:
    """Both ends after a whole handshake in memory. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
    assert len(done) == 2
    return ends


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return open_authority(tmp_path / "authority", "plant", now())


@pytest.fixture
def gateway(tmp_path: Path, authority: Authority) -> TlsFiles:
    return machine(tmp_path / "gateway", authority, GATEWAY, timedelta())


def test_each_side_learns_the_name_of_the_other(
    tmp_path: Path, authority: Authority, gateway: TlsFiles
) -> None:
    node = machine(tmp_path / "node", authority, NODE, timedelta())
    client, server = shake_hands(
        client_context(node), server_context(gateway, is_certificate_required=True)
    )
    assert client.version() == "TLSv1.3"
    found = check_peer(peer_name(client), "plant", "gateway", GATEWAY.id)
    assert found.uri == GATEWAY.uri
    assert check_peer(peer_name(server), "plant", "node").id == NODE.id


def test_a_certificate_is_optional_only_where_joining_machines_come(
    authority: Authority, gateway: TlsFiles
) -> None:
    pinned = pinned_context(authority.pem.decode())
    _, server = shake_hands(pinned, server_context(gateway, is_certificate_required=False))
    assert peer_name(server) is None
    with pytest.raises(Denied, match="no certificate was shown"):
        check_peer(peer_name(server), "plant", "node")
    with pytest.raises(ssl.SSLError):
        shake_hands(pinned, server_context(gateway, is_certificate_required=True))


def test_no_ticket_lets_a_machine_back_in_without_its_certificate(
    tmp_path: Path, authority: Authority, gateway: TlsFiles
) -> None:
    node = machine(tmp_path / "node", authority, NODE, timedelta())
    for is_required in (True, False):
        context = server_context(gateway, is_certificate_required=is_required)
        client, server = shake_hands(client_context(node), context)
        server.write(b"x")
        assert client.read() == b"x"  # tickets would have come before it
        assert client.session is not None
        assert not client.session.has_ticket


def test_a_certificate_of_another_authority_counts_nothing(
    tmp_path: Path, gateway: TlsFiles
) -> None:
    other = open_authority(tmp_path / "other", "plant", now())
    foreign = machine(tmp_path / "foreign", other, NODE, timedelta())
    with pytest.raises(ssl.SSLError):
        shake_hands(client_context(foreign), server_context(gateway, is_certificate_required=False))


def test_an_expired_certificate_counts_nothing(
    tmp_path: Path, authority: Authority, gateway: TlsFiles
) -> None:
    late = machine(tmp_path / "late", authority, NODE, timedelta(hours=25))
    with pytest.raises(ssl.SSLError):
        shake_hands(client_context(late), server_context(gateway, is_certificate_required=False))


def test_one_that_has_ended_is_heard_where_that_is_wanted_and_tells_its_end(
    tmp_path: Path, authority: Authority, gateway: TlsFiles
) -> None:
    late = machine(tmp_path / "late", authority, NODE, timedelta(hours=25))
    hearing = server_context(gateway, is_certificate_required=False, is_lapsed_heard=True)
    _, server = shake_hands(client_context(late), hearing)
    name = peer_name(server)
    assert name is not None
    assert name.id == NODE.id
    now_ms = int(now().timestamp() * 1000)
    assert 3_500_000 < now_ms - certificate_end_ms(server, now_ms) < 3_700_000
    with pytest.raises(Denied, match="later than it is here"):
        certificate_end_ms(server, now_ms - 26 * 3_600_000)


def test_a_foreign_one_counts_nothing_where_ended_ones_are_heard(
    tmp_path: Path, gateway: TlsFiles
) -> None:
    other = open_authority(tmp_path / "other", "plant", now())
    foreign = machine(tmp_path / "foreign", other, NODE, timedelta(hours=25))
    hearing = server_context(gateway, is_certificate_required=False, is_lapsed_heard=True)
    with pytest.raises(ssl.SSLError):
        shake_hands(client_context(foreign), hearing)


def test_nobody_has_no_end(gateway: TlsFiles, authority: Authority) -> None:
    pinned = pinned_context(authority.pem.decode())
    hearing = server_context(gateway, is_certificate_required=False, is_lapsed_heard=True)
    _, server = shake_hands(pinned, hearing)
    with pytest.raises(Denied, match="how long it lasts"):
        certificate_end_ms(server, 0)


def test_nothing_below_tls_1_3_is_spoken(gateway: TlsFiles, authority: Authority) -> None:
    old = pinned_context(authority.pem.decode())
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(old, server_context(gateway, is_certificate_required=False))


def test_no_connection_that_was_cut_passes_for_one_that_ended(
    gateway: TlsFiles, authority: Authority
) -> None:
    pinned = pinned_context(authority.pem.decode())
    server = server_context(gateway, is_certificate_required=True)
    for context in (server, client_context(gateway), pinned, unverified_context()):
        assert not context.options & ssl.OP_IGNORE_UNEXPECTED_EOF


def test_a_node_cannot_pose_as_a_gateway() -> None:
    with pytest.raises(Denied, match="instead of gateway"):
        check_peer(NODE, "plant", "gateway")
    with pytest.raises(Denied, match="instead of node"):
        check_peer(NODE, "plant", "node", "0" * 16)
    with pytest.raises(Denied, match="instead of node"):
        check_peer(NODE, "other-plant", "node")


def test_missing_and_broken_files_are_named(tmp_path: Path, gateway: TlsFiles) -> None:
    with pytest.raises(Unavailable, match="is missing"):
        client_context(files_in(tmp_path / "nowhere", "node"))
    gateway.certificate.write_text("no certificate")
    with pytest.raises(Unavailable, match="cannot be used"):
        client_context(gateway)
