"""What a client shows: from files and variables only, and never in plain text over a network."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from din.client import Client
from din.client.credentials import Credentials, load_credentials
from din.client.http import Connection
from din.domain.trust import PeerName, Role
from din.errors import Denied, Unauthenticated, UsageError
from din.trust.authority import Authority, open_authority
from din.trust.requests import load_key, new_key_pem, pem_of_key
from tests.client.fake_gateway import FakeGateway, failing, furnish

KEY = "din_0badcafe." + "A" * 43


@pytest.fixture
def fake() -> Iterator[FakeGateway]:
    made = FakeGateway()
    furnish(made)
    yield made
    made.close()


def saved(folder: Path, text: str) -> Path:
    path = folder / "line-4.key"
    path.write_text(text)
    return path


def test_a_key_is_sent_with_every_request(fake: FakeGateway, tmp_path: Path) -> None:
    with Client(fake.url, key_file=saved(tmp_path, f"{KEY}\n")) as client:
        client.nodes()
        client.models()
    assert [each.headers["authorization"] for each in fake.seen] == [f"Bearer {KEY}"] * 2


def test_without_a_key_none_is_sent(fake: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIN_API_KEY", "DIN_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    with Client(fake.url) as client:
        client.nodes()
    assert "authorization" not in fake.seen[0].headers


def test_a_given_file_wins_over_variables_and_the_key_itself_over_its_file(tmp_path: Path) -> None:
    path = saved(tmp_path, KEY)
    other = "din_ffffffff." + "B" * 43
    variables = {"DIN_API_KEY": other, "DIN_API_KEY_FILE": str(tmp_path / "absent")}
    assert load_credentials(variables).key == other
    assert load_credentials(variables, key_file=path).key == KEY
    assert load_credentials({"DIN_API_KEY_FILE": str(path)}).key == KEY
    assert load_credentials({}).key == ""


@pytest.mark.parametrize("text", ["", "hello\n", KEY[:-1], f"{KEY} {KEY}", KEY[:40] + "é" * 16])
def test_a_file_without_a_key_is_named_and_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_credentials({}, key_file=saved(tmp_path, text))
    assert "line-4.key" in caught.value.message
    assert "AAAA" not in caught.value.story()


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="'/nowhere/key' cannot be read"):
        load_credentials({"DIN_API_KEY_FILE": "/nowhere/key"})


@pytest.mark.parametrize("url", ["http://10.0.0.5:8000", "http://gateway.example:8000"])
def test_a_key_never_crosses_a_network_in_plain_text(url: str) -> None:
    with pytest.raises(Denied, match="in plain text"):
        Connection(url, credentials=Credentials(key=KEY))
    Connection(url, credentials=Credentials())
    Connection(url.replace("http:", "https:"), credentials=Credentials(key=KEY))
    for here in ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"):
        Connection(here, credentials=Credentials(key=KEY))


def test_no_text_of_credentials_shows_the_key() -> None:
    assert KEY not in repr(Credentials(key=KEY))


def test_a_refusal_comes_back_as_its_own_error(fake: FakeGateway) -> None:
    told = Unauthenticated("this needs an API key with scope admin", hint="send one")
    fake.routes["GET", "/api/v1/nodes"] = failing(told)
    with Client(fake.url) as client, pytest.raises(Unauthenticated, match="scope admin"):
        client.nodes()


def test_what_is_no_certificate_is_said() -> None:
    with pytest.raises(Denied, match="no certificate"):
        Connection("https://127.0.0.1:1", credentials=Credentials(authority_pem="hello"))


def authority_in(folder: Path) -> Authority:
    return open_authority(folder, "default", datetime.now(UTC))


def issued(folder: Path, authority: Authority, role: Role, *, age_days: int = 0) -> ssl.SSLContext:
    """A server's context with a certificate of this role."""
    key = load_key(new_key_pem())
    name = PeerName("default", role, "00000000000000aa")
    path = folder / "server.pem"
    made = authority.issue(key.public_key(), name, datetime.now(UTC) - timedelta(days=age_days))
    path.write_bytes(pem_of_key(key) + made)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@contextmanager
def served_by_tls(context: ssl.SSLContext) -> Iterator[tuple[str, FakeGateway]]:
    """A gateway behind TLS, and its URL."""
    fake = FakeGateway()
    furnish(fake)
    plain = fake.server.socket
    fake.server.socket = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=True)
    fake.server.handle_error = lambda *_: None
    try:
        yield fake.url.replace("http:", "https:"), fake
    finally:
        fake.close()


def asked(url: str, authority: Authority, folder: Path) -> None:
    ca_file = folder / "authority.pem"
    ca_file.write_bytes(authority.pem)
    with Client(url, ca_file=ca_file, key_file=saved(folder, KEY)) as client:
        assert client.nodes().items


def test_a_gateway_is_known_by_its_authority_under_any_address(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "trust")
    with served_by_tls(issued(tmp_path, authority, "gateway")) as (url, fake):
        asked(url, authority, tmp_path)
        assert fake.seen[0].headers["authorization"] == f"Bearer {KEY}"


def test_another_authority_is_refused_and_gets_no_key(tmp_path: Path) -> None:
    context = issued(tmp_path, authority_in(tmp_path / "rogue"), "gateway")
    with served_by_tls(context) as (url, fake):
        with pytest.raises(Denied, match="does not show a certificate that counts") as caught:
            asked(url, authority_in(tmp_path / "trust"), tmp_path)
        assert "--ca FILE (ca_file= in Python)" in caught.value.hint
        assert fake.seen == []


def test_a_certificate_that_is_not_of_today_asks_for_the_clocks(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "trust")
    with served_by_tls(issued(tmp_path, authority, "gateway", age_days=3)) as (url, fake):
        with pytest.raises(Denied, match="certificate has expired") as caught:
            asked(url, authority, tmp_path)
        assert "date -u" in caught.value.hint
        assert fake.seen == []


def test_a_node_cannot_pose_as_the_gateway(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "trust")
    with served_by_tls(issued(tmp_path, authority, "node")) as (url, fake):
        with pytest.raises(Denied, match="which is no gateway"):
            asked(url, authority, tmp_path)
        assert fake.seen == []
