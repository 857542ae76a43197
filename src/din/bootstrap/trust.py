"""The gateway's own trust: its authority, its certificate, and renewing that by itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from din.domain.trust import PeerName
from din.errors import DinError
from din.system.clock import wall_clock_ms
from din.system.identity import write_atomically
from din.transport.tls import files_in, server_context, take_new_certificate
from din.trust.authority import CERTIFICATE_LIFE, Authority, kept_key, open_authority
from din.trust.requests import load_key

FOLDER: Final = "trust"
LOOK_S: Final = 60.0
"""Between two looks at the certificate's age; clocks may jump, so one long sleep would not do."""
RENEWED_AFTER_MS: Final = int(CERTIFICATE_LIFE.total_seconds() * 1000 * 2 / 3)


class GatewayTrust:
    """Authority, certificate and contexts of one gateway. Each start takes a new certificate."""

    def __init__(
        self,
        authority: Authority,
        folder: Path,
        name: PeerName,
        hosts: Callable[[], tuple[str, ...]],
        report: Callable[..., None],
    ) -> None:
        """`hosts` are what the gateway is reached by. Raises Denied or Unavailable when the files
        cannot be used."""
        self.authority = authority
        self.files = files_in(folder, "gateway")
        self.name = name
        self._hosts = hosts
        self._named_hosts: tuple[str, ...] = ()
        self._report = report
        self._contexts: list[ssl.SSLContext] = []
        self._began_ms = 0
        self._key = load_key(kept_key(self.files.key))

    def context(self) -> ssl.SSLContext:
        """For the TLS port, where `api.peers` tells certificates that have ended from those that
        count. It gets the gateway's next certificates as well."""
        made = server_context(self.files, is_certificate_required=False, is_lapsed_heard=True)
        self._contexts.append(made)
        return made

    def refresh(self, now_ms: int) -> bool:
        """Take a new certificate at two thirds of the old one's life, when the clock went back
        before its beginning, or when this machine's addresses changed. Raises DinError when it
        cannot be written."""
        hosts = self._hosts()
        is_young = self._began_ms <= now_ms < self._began_ms + RENEWED_AFTER_MS
        if is_young and hosts == self._named_hosts:
            return False
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        certificate = self.authority.issue(self._key.public_key(), self.name, now, hosts=hosts)
        write_atomically(self.files.certificate, certificate)
        for context in self._contexts:
            take_new_certificate(context, self.files)
        self._began_ms, self._named_hosts = now_ms, hosts
        self._report(
            "certificate taken",
            name=self.name.uri,
            ends=(now + CERTIFICATE_LIFE).isoformat(timespec="seconds"),
        )
        return True

    def reload(self) -> None:
        """Use the certificate as it lies on disk, for connections to come. Raises Unavailable."""
        for context in self._contexts:
            take_new_certificate(context, self.files)

    async def keep_fresh(self) -> None:
        """For ever; the caller cancels it. A failure is reported and tried again."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.refresh(wall_clock_ms())
            except DinError as error:
                self._report("certificate not renewed", error=error.message, hint=error.hint)


def open_trust(
    state: Path,
    cluster: str,
    gateway_id: str,
    hosts: Callable[[], tuple[str, ...]],
    report: Callable[..., None],
) -> GatewayTrust:
    """The trust of this state directory, made at the first call. Raises Denied or Unavailable."""
    folder = state / FOLDER
    now_ms = wall_clock_ms()
    authority = open_authority(folder, cluster, datetime.fromtimestamp(now_ms / 1000, UTC))
    name = PeerName(cluster, "gateway", gateway_id)
    trust = GatewayTrust(authority, folder, name, hosts, report)
    trust.refresh(now_ms)
    return trust
