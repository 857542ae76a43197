"""The gateway's own certificate: what it names, when it is taken anew, and where artifacts are."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from din.bootstrap.reach import CertifiedHosts, Reach
from din.bootstrap.trust import RENEWED_AFTER_MS, GatewayTrust, open_trust
from din.config import GatewayConfig
from din.errors import Unavailable
from din.system.clock import wall_clock_ms
from din.system.identity import Identity


class Hosts:
    """What the gateway is reached by, as a test says."""

    def __init__(self, *now: str) -> None:
        self.now = now

    def __call__(self) -> tuple[str, ...]:
        return self.now


@pytest.fixture
def hosts() -> Hosts:
    return Hosts("127.0.0.1", "localhost")


@pytest.fixture
def trust(tmp_path: Path, hosts: Hosts) -> GatewayTrust:
    return open_trust(tmp_path, "plant", "ab" * 8, hosts, lambda *_, **__: None)


def handshake(trust: GatewayTrust, host: str) -> None:
    """As curl and Prometheus do: the authority and the host's name decide."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = ssl.create_default_context(cafile=str(trust.files.authority))
    client = theirs.wrap_bio(to_client, to_server, server_hostname=host)
    ours = trust.context()
    server = ours.wrap_bio(to_server, to_client, server_side=True)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    with suppress(ssl.SSLWantReadError):
        server.do_handshake()
    client.do_handshake()


def test_programs_that_know_nothing_of_din_accept_its_address(trust: GatewayTrust) -> None:
    handshake(trust, "127.0.0.1")
    handshake(trust, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"10\.9\.9\.9"):
        handshake(trust, "10.9.9.9")


def test_a_new_address_makes_a_new_certificate(trust: GatewayTrust, hosts: Hosts) -> None:
    now_ms = wall_clock_ms()
    assert not trust.refresh(now_ms)
    hosts.now = ("10.9.9.9",)
    assert trust.refresh(now_ms)
    handshake(trust, "10.9.9.9")
    assert not trust.refresh(now_ms)
    assert trust.refresh(now_ms + RENEWED_AFTER_MS)


def test_a_bound_address_and_this_machines_name_are_certified() -> None:
    found = CertifiedHosts("10.9.9.9")()
    assert found[:3] == ("10.9.9.9", "127.0.0.1", "localhost")
    assert socket.gethostname() in found


@pytest.mark.parametrize(
    ("local_host", "is_joined", "url"),
    [
        ("", False, "http://127.0.0.1:8000"),
        ("10.9.9.9", False, "http://10.9.9.9:8000"),
        ("10.9.9.9", True, "https://10.9.9.9:8443"),
        # A Unix socket that is shared says nothing of the networks: containers share folders.
        ("", True, "https://10.9.9.9:8443"),
    ],
)
def test_a_node_that_has_joined_gets_artifacts_by_tls_wherever_it_is(
    local_host: str, is_joined: bool, url: str
) -> None:
    identity = Identity(node_id="ab" * 8, session=1)
    reach = Reach(GatewayConfig(host="10.9.9.9"), identity, port=8000, tls_port=8443)
    assert reach.artifact_url(local_host, is_joined=is_joined) == f"{url}/api/v1/artifacts/"


def shown_serial(context: ssl.SSLContext, trust: GatewayTrust) -> str:
    """Of the certificate that a new connection is shown by a context that exists already."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = ssl.create_default_context(cafile=str(trust.files.authority))
    client = theirs.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    with suppress(ssl.SSLWantReadError):
        server.do_handshake()
    client.do_handshake()
    told = client.getpeercert()
    assert told is not None
    return str(told["serialNumber"])


def test_a_reload_shows_the_certificate_on_disk_and_keeps_the_old_one_when_that_is_broken(
    tmp_path: Path, trust: GatewayTrust, hosts: Hosts
) -> None:
    context = trust.context()
    first = shown_serial(context, trust)
    # Somebody else writes a new one for the same key: an operator, or a second look at the disk.
    other = open_trust(tmp_path, "plant", "ab" * 8, hosts, lambda *_, **__: None)
    assert shown_serial(context, trust) == first, "nothing was reloaded yet"
    trust.reload()
    second = shown_serial(context, trust)
    assert second != first
    assert second == shown_serial(other.context(), other)
    for broken in (b"", b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"):
        trust.files.certificate.write_bytes(broken)
        with pytest.raises(Unavailable, match=r"gateway\.pem"):
            trust.reload()
        assert shown_serial(context, trust) == second
