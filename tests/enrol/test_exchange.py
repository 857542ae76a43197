"""What a joining machine makes of answers that no true gateway gives."""

from __future__ import annotations

import re
import socket
import ssl
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from din.domain.enrolment import Enrolled
from din.enrol.joining import join, renew
from din.errors import Conflict, Denied, DinError, Unreachable
from din.system.clock import wall_clock_ms
from din.transport.membership import EnrolOrder, Membership, has_joined, write_membership
from din.wire.join_token import JoinToken

sys.path.insert(0, str(Path(__file__).parents[1] / "transport"))
from tls_machines import CLUSTER, GATEWAY, NODE, OTHER, authority_in, machine

SECRET = "s3cret_-AAAAAAAAAAAAAA"


class Impostor:
    """The true gateway's certificate, and answers as a test writes them."""

    def __init__(self, folder: Path, age: timedelta = timedelta()) -> None:
        self.folder = folder
        self.authority = authority_in(folder / "authority")
        files = machine(folder / "gateway", self.authority, GATEWAY, age)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(str(files.certificate), str(files.key))
        self.answers: list[bytes] = []
        self.heard: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.listener.getsockname()[1]}"
        self.node = folder / "node" / "trust"

    def serve(self) -> None:
        while True:
            try:
                plain, _ = self.listener.accept()
            except OSError:
                return
            with suppress(OSError, IndexError), plain:
                plain.settimeout(30)
                with self.context.wrap_socket(plain, server_side=True) as secure:
                    self.heard.append(whole_request(secure))
                    secure.sendall(self.answers.pop(0))

    def shows_authority(self, more: str = "") -> None:
        self.answers.append(answer(self.authority.pem, more=more))

    def enrolled(self, **others: object) -> bytes:
        facts: dict[str, object] = {
            "certificate": self.authority.pem.decode(),
            "cluster": CLUSTER,
            "gateway_id": GATEWAY.id,
            "gateways": (self.url,),
            "signing_key": "",
            "begins_ms": 1,
            "ends_ms": 2,
        }
        return answer(msgspec.json.encode(Enrolled(**{**facts, **others})))

    def order(self) -> EnrolOrder:
        token = JoinToken(self.authority.sha256, "434d5aaa", SECRET).text
        return EnrolOrder(
            folder=str(self.node), gateways=(self.url,), token=token, node_id=NODE.id, name="edge-1"
        )

    def refused(self, kind: type[DinError], words: str) -> DinError:
        """The error that the join ends with; the machine has not joined."""
        with pytest.raises(kind, match=words) as told:
            join(self.order(), wall_clock_ms)
        assert type(told.value) is kind
        assert not has_joined(self.node)
        assert SECRET not in told.value.story()
        return told.value


def whole_request(sock: ssl.SSLSocket) -> bytes:
    """With its body: what is closed before it was read breaks off what was answered."""
    heard = b""
    while True:
        head, end, body = heard.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head.lower())
        if end and len(body) >= (int(found[1]) if found else 0):
            return heard
        more = sock.recv(65536)
        if not more:
            raise ConnectionResetError
        heard += more


def answer(body: bytes, status: int = 200, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@contextmanager
def serving(made: Impostor) -> Generator[Impostor]:
    thread = threading.Thread(target=made.serve)
    thread.start()
    try:
        yield made
    finally:
        made.listener.shutdown(socket.SHUT_RDWR)
        made.listener.close()
        thread.join()


@pytest.fixture
def impostor(tmp_path: Path) -> Generator[Impostor]:
    with serving(Impostor(tmp_path)) as made:
        yield made


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (answer(b"no", 404), Unreachable, "answered HTTP 404"),
        (answer(b"<html>", 200), Unreachable, "answered no certificate"),
        (answer(b"\xff\xfe"), Unreachable, "answered no certificate"),
        (answer(b"x" * 70_000), Unreachable, "answered more than 65536 bytes"),
        # Earlier releases of Python 3.11 tell of the cut, later ones of what came before it.
        (answer(b"x" * 7_000)[:5_000], Unreachable, "answered no certificate|broke off"),
        (b"SSH-2.0-OpenSSH_9\r\n", Unreachable, "broke off"),
        (b"", Unreachable, "broke off"),
        (b"HTTP/1.1 200 X\r\n" + b"a: b\r\n" * 200 + b"\r\n", Unreachable, "broke off"),
        (
            answer(b'{"error":{"code":"DIN-600","message":"taken","hint":"wait"}}', 409),
            Conflict,
            "taken",
        ),
    ],
)
def test_who_shows_no_authority_gets_nothing(
    impostor: Impostor, said: bytes, kind: type[DinError], words: str
) -> None:
    impostor.answers.append(said)
    impostor.refused(kind, words)
    assert len(impostor.heard) == 1
    assert SECRET.encode() not in impostor.heard[0]


@pytest.mark.parametrize("date", ["", "date: yesterday\r\n", "date: Mon, 99 Nov 2026\r\n"])
def test_a_clock_that_is_not_told_is_not_compared(impostor: Impostor, date: str) -> None:
    impostor.shows_authority(date)
    impostor.answers.append(answer(b"{}", 200))
    impostor.refused(Unreachable, "answered no certificate")
    assert len(impostor.heard) == 2


def test_a_clock_that_is_far_off_stops_it_before_the_token_is_shown(impostor: Impostor) -> None:
    impostor.shows_authority("date: Mon, 30 Nov 2020 12:00:00 GMT\r\n")
    error = impostor.refused(Denied, "ahead of that of")
    assert "timedatectl" in error.hint
    assert SECRET.encode() not in b"".join(impostor.heard)


def test_what_comes_instead_of_a_certificate_is_not_kept(impostor: Impostor) -> None:
    other = authority_in(impostor.folder / "other")
    stranger = machine(impostor.folder / "stranger", impostor.authority, OTHER)
    cases = (
        (impostor.enrolled(cluster="other"), "answers for 'other'"),
        (impostor.enrolled(), "another key"),
        (impostor.enrolled(certificate=other.pem.decode()), "none of the cluster's authority"),
        (impostor.enrolled(certificate="nonsense"), "none of the cluster's authority"),
        (impostor.enrolled(certificate=stranger.certificate.read_text()), "another key"),
    )
    for said, words in cases:
        impostor.shows_authority()
        impostor.answers.append(said)
        impostor.refused(Denied, words)
    assert [each.name for each in impostor.node.iterdir()] == ["node.key"]


def test_a_gateway_whose_certificate_has_ended_is_blamed_on_the_clocks(tmp_path: Path) -> None:
    with serving(Impostor(tmp_path, timedelta(days=3))) as impostor:
        impostor.shows_authority()
        error = impostor.refused(Denied, "does not count now: certificate has expired")
        assert "timedatectl" in error.hint
        assert SECRET.encode() not in b"".join(impostor.heard)


def test_a_renewal_that_brings_nothing_usable_leaves_the_old_certificate(
    impostor: Impostor,
) -> None:
    impostor.node.parent.mkdir()
    files = machine(impostor.node, impostor.authority, NODE)
    before = Membership(
        cluster=CLUSTER, node_id=NODE.id, gateways=(impostor.url,), signing_key="",
        begins_ms=1, ends_ms=2,
    )  # fmt: skip
    write_membership(impostor.node, before)
    kept = (files.certificate.read_bytes(), (impostor.node / "cluster.json").read_bytes())
    order = EnrolOrder(folder=str(impostor.node), gateways=(impostor.url,))
    for said in (impostor.enrolled(), impostor.enrolled(cluster="other")):
        impostor.answers.append(said)
        with pytest.raises(Denied):
            renew(order, wall_clock_ms)
    impostor.answers.append(answer(b"[]"))
    with pytest.raises(Unreachable, match="answered no certificate"):
        renew(order, wall_clock_ms)
    assert kept == (files.certificate.read_bytes(), (impostor.node / "cluster.json").read_bytes())
