"""What a machine proves its name with, as its files are now.

Certificates are renewed while links live: each new connection uses what lies on disk at that time,
open ones keep what they were opened with.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from din.domain.trust import Role
from din.errors import Unavailable
from din.transport.tls import TlsFiles, check_peer, client_context, server_context
from din.transport.tls_socket import TlsSocket


class TlsIdentity:
    """The contexts of one machine for links. All calls in one thread."""

    def __init__(self, files: TlsFiles, cluster: str, report: Callable[..., None]) -> None:
        """Raises Unavailable when a file is missing or broken."""
        self.cluster = cluster
        self._files = files
        self._report = report
        self._stamp = self._look()
        self._client, self._server = self._load()

    def client(self) -> ssl.SSLContext:
        """For dialling."""
        self._refresh()
        return self._client

    def server(self) -> ssl.SSLContext:
        """For accepting; a certificate is required."""
        self._refresh()
        return self._server

    def check(self, sock: TlsSocket, role: Role, target_id: str = "") -> str:
        """The id of the other side. Raises Denied when it is not of this cluster, role and id."""
        return check_peer(sock.peer, self.cluster, role, target_id).id

    def _refresh(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._client, self._server = self._load()
        except Unavailable as error:
            # What was loaded still proves our name until it expires.
            self._report("certificate not taken up", reason=error.message, hint=error.hint)
        else:
            self._report("certificate taken up", path=str(self._files.certificate))

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        return (
            client_context(self._files),
            server_context(self._files, is_certificate_required=True),
        )

    def _look(self) -> tuple[Any, ...]:
        """Changes whenever a file is replaced; the key stays as long as the node id."""
        stamps: list[Any] = []
        for path in (self._files.authority, self._files.certificate):
            try:
                found = path.stat()
            except OSError as error:
                stamps.append(error.errno)
            else:
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return tuple(stamps)
