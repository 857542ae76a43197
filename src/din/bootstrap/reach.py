"""Under which addresses nodes and people reach a gateway."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from din.config import GatewayConfig, is_loopback
from din.discovery.admission import Terms
from din.discovery.schedule import BeatSchedule
from din.system.identity import Identity
from din.system.network import AddressWatch, bound_addresses
from din.transport.server import LinkServer
from din.wire.registration import ADDRESS_COUNT_MAX

UNIX_PATH_BYTES_MAX: Final = 100
"""The kernel allows 107; some room for a suffix."""
URLS_MAX: Final = 8


class CertifiedHosts:
    """What the gateway's certificate says it is reached by; looked up anew at each call."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._watch = AddressWatch()

    def __call__(self) -> tuple[str, ...]:
        """Addresses, `localhost` and this machine's name."""
        self._watch.look()
        addresses = bound_addresses(self._host, self._watch.current)
        names = (each for each in ("localhost", os.uname().nodename) if each.isascii())
        return tuple(dict.fromkeys((*addresses, "127.0.0.1", *filter(None, names))))


class Reach:
    """The gateway's addresses; links are opened by `listen`."""

    def __init__(self, config: GatewayConfig, identity: Identity, port: int, tls_port: int) -> None:
        """`tls_port` 0 = TLS is off."""
        self._config = config
        self._identity = identity
        self.port = port
        self.tls_port = tls_port
        self._watch = AddressWatch(config.interfaces_allowed, config.interfaces_denied)
        self.url = f"http://{_shown(self._hosts(config.plain_host)[0])}:{port}"
        self.links: tuple[str, ...] = ()

    def _hosts(self, host: str) -> tuple[str, ...]:
        return bound_addresses(host, self._watch.current)

    @property
    def tls_urls(self) -> tuple[str, ...]:
        """Where other machines find the control API; looked up anew, as addresses change."""
        if not self.tls_port:
            return ()
        self._watch.look()
        hosts = self._hosts(self._config.host)[:URLS_MAX]
        return tuple(f"https://{_shown(host)}:{self.tls_port}" for host in hosts)

    def listen(self, server: LinkServer) -> None:
        """Open the link addresses. Raises Conflict."""
        path = str(Path(self._config.state_dir) / "gateway.sock")
        if len(path.encode()) > UNIX_PATH_BYTES_MAX:
            path = str(Path(tempfile.gettempdir()) / f"din-{self._identity.node_id}.sock")
        server.listen_unix(path)
        self.links = (f"unix:{path}",)
        host = self._config.host  # off loopback they are encrypted, or that was given up
        if self._config.require_key and not self.tls_port and is_loopback(host):
            return  # a port on loopback is every user's of this machine, and asks for no key
        link_port = server.listen_tcp(host, self._config.link_port)
        # Nodes in several networks reach us under several addresses, and perhaps not each other.
        tcp = (f"tcp:{_shown(each)}:{link_port}" for each in self._hosts(host))
        self.links = (*self.links, *tcp)[:ADDRESS_COUNT_MAX]

    def artifact_url(self, host: str, *, is_joined: bool) -> str:
        """Where artifacts are for a node that has us at this address (empty = on this host), with
        a certificate or without. One that has joined may share our files and not our loopback."""
        if is_joined and self.tls_port:
            host = host or self._hosts(self._config.host)[0]
            return f"https://{_shown(host)}:{self.tls_port}/api/v1/artifacts/"
        shown = _shown(host or self._hosts(self._config.plain_host)[0])
        return f"http://{shown}:{self.port}/api/v1/artifacts/"

    def terms(self, schedule: BeatSchedule) -> Terms:
        """What every admitted node is told."""
        warning = schedule.warning()
        return Terms(
            cluster=self._config.cluster,
            gateway_id=self._identity.node_id,
            links=self.links,
            warnings=(warning,) if warning else (),
        )


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
