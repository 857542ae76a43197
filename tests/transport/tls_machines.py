"""Machines of one cluster with certificates, for tests of encrypted links."""

from __future__ import annotations

import _ssl
import asyncio
import ctypes
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from din.domain.trust import PeerName
from din.system.identity import write_atomically
from din.transport.tls import TlsFiles, client_context, files_in, server_context
from din.transport.tls_handshake import secure
from din.transport.tls_socket import TlsSocket
from din.trust.authority import Authority, open_authority
from din.trust.requests import new_key_pem, public_key_of_request, signing_request

CLUSTER = "plant"
GATEWAY = PeerName(CLUSTER, "gateway", "00112233aabbccdd")
NODE = PeerName(CLUSTER, "node", "ffeeddccbbaa0099")
OTHER = PeerName(CLUSTER, "node", "1111222233334444")


def now() -> datetime:
    return datetime.now(UTC)


def authority_in(folder: Path, cluster: str = CLUSTER) -> Authority:
    return open_authority(folder, cluster, now())


def machine(
    folder: Path, authority: Authority, name: PeerName, age: timedelta = timedelta()
) -> TlsFiles:
    """A directory as it is after a join; called again it renews the certificate."""
    folder.mkdir(exist_ok=True)
    files = files_in(folder, name.role)
    if not files.key.exists():
        write_atomically(files.key, new_key_pem(), mode=0o600)
    public = public_key_of_request(signing_request(files.key.read_bytes()))
    write_atomically(files.certificate, authority.issue(public, name, now() - age))
    write_atomically(files.authority, authority.pem)
    return files


class Machines:
    """A gateway and a node of one cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = authority_in(folder / "authority")
        self.gateway = machine(folder / "gateway", self.authority, GATEWAY)
        self.node = machine(folder / "node", self.authority, NODE)

    def client(self) -> ssl.SSLContext:
        return client_context(self.node)

    def server(self) -> ssl.SSLContext:
        return server_context(self.gateway, is_certificate_required=True)


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends of one TCP connection, non-blocking and prompt."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    for sock in (client, server):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, server


@asynccontextmanager
async def secured(machines: Machines) -> AsyncIterator[tuple[TlsSocket, TlsSocket]]:
    """Client and server after the handshake."""
    client, server = connected()
    ends = await asyncio.gather(
        secure(client, machines.client(), is_server=False),
        secure(server, machines.server(), is_server=True),
    )
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


def ask_for_new_keys(sock: TlsSocket) -> None:
    """The standard library has no call for it: take the SSL pointer out of CPython's object."""
    library = ctypes.CDLL(_ssl.__file__)
    if not hasattr(library, "SSL_key_update"):
        pytest.skip("this build of Python hides OpenSSL's functions")
    inner = sock._socket._sslobj
    head = object.__basicsize__
    pointer = ctypes.c_void_p.from_address(id(inner) + head + ctypes.sizeof(ctypes.c_void_p))
    library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    assert library.SSL_key_update(pointer, 1) == 1
