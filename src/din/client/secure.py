"""HTTPS to a gateway: by its pinned authority, or by those that this machine trusts."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

from din.client.credentials import Credentials
from din.errors import Denied
from din.transport.tls import client_context, files_in, peer_name, pinned_context


class PinnedConnection(http.client.HTTPSConnection):
    """Speaks with a gateway of the given authority only, under whatever address it was found."""

    def __init__(self, host: str, port: int | None, credentials: Credentials) -> None:
        """Raises Denied for what is no certificate, Unavailable for a node without one."""
        try:
            context = _context(credentials)
        except ssl.SSLError as error:
            raise Denied(
                f"the authority given is no certificate: {error.reason or error}",
                hint="--ca names the ca.pem of the cluster, from <gateway state>/trust/ca.pem",
            ) from None
        super().__init__(host, port, context=context)

    def connect(self) -> None:
        """Raises Denied when somebody else answers there."""
        super().connect()
        assert isinstance(self.sock, ssl.SSLSocket)
        name = peer_name(self.sock)
        if name is None or name.role != "gateway":
            self.close()
            # A node's certificate comes from the same authority.
            raise Denied(
                f"{self.host} answered as {name.uri if name else 'nobody'}, which is no gateway",
                hint="check the gateway's URL",
            )


def _context(credentials: Credentials) -> ssl.SSLContext:
    if credentials.node_trust:
        return client_context(files_in(Path(credentials.node_trust), "node"))
    return pinned_context(credentials.authority_pem)


def connection_to(
    host: str, port: int | None, credentials: Credentials
) -> http.client.HTTPSConnection:
    """With an authority: that one only. Without: as browsers do, by name."""
    if credentials.authority_pem or credentials.node_trust:
        return PinnedConnection(host, port, credentials)
    return http.client.HTTPSConnection(host, port)
