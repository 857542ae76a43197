"""The gateway says by multicast DNS that its cluster is here. A hint for agents, never trusted.

One service instance `<cluster>-<gateway id>._din._tcp.local.` on the interfaces that HTTP is bound
to. A refused port 5353 is a reason to show, not an error: agents then find the gateway by unicast.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import zeroconf
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from din.system.network import AddressWatch, bound_addresses

SERVICE_TYPE: Final = "_din._tcp.local."
INSTANCE_CLUSTER_BYTES_MAX: Final = 46
"""A DNS label has 63 bytes; '-' and the gateway id take 17."""
_FAILURES: Final = (OSError, zeroconf.Error, TimeoutError)


class Announcer:
    """Announces one gateway. `refresh` repeats what failed and follows changed addresses."""

    def __init__(
        self,
        *,
        cluster: str,
        gateway_id: str,
        version: str,
        http_host: str,
        http_port: int,
        tls_port: int = 0,
        report: Callable[..., None],
        watch: AddressWatch,
    ) -> None:
        self._cluster = cluster
        self._gateway_id = gateway_id
        self._version = version
        self._http_host = http_host
        self._http_port = http_port
        self._tls_port = tls_port
        self._report = report
        self._watch = watch
        self._zeroconf: AsyncZeroconf | None = None
        self._reported: str | None = None
        self.failure: str | None = "not started"
        """Why nothing is announced; None = announced."""

    async def start(self) -> str | None:
        """Announce. Answers None, or the reason why that is not possible; never raises."""
        wanted = bound_addresses(self._http_host, self._watch.current)
        addresses = tuple(each for each in wanted if _is_ours(each))
        try:
            if not addresses:
                raise OSError("no such address on this machine")
            self._zeroconf = AsyncZeroconf(
                interfaces=list(addresses), ip_version=zeroconf.IPVersion.V4Only
            )
            announced = await self._zeroconf.async_register_service(
                self._service(addresses), cooperating_responders=True
            )
            await announced
        except _FAILURES as error:
            await self._close()
            self.failure = f"multicast DNS on {', '.join(wanted)} failed: {_said(error)}"
            if self.failure != self._reported:  # `refresh` comes often; the same news once
                self._reported = self.failure
                self._report("announce_failed", reason=self.failure)
            return self.failure
        self.failure = self._reported = None
        self._report("announced", cluster=self._cluster, addresses=", ".join(addresses))
        return None

    async def refresh(self) -> None:
        """Look at the interfaces again: announce anew after a change or a failure."""
        if self._watch.look() or self.failure is not None:
            await self.stop()
            await self.start()

    async def stop(self) -> None:
        """Say goodbye and close. May be called twice; never raises."""
        if self._zeroconf is not None and self.failure is None:
            try:
                await self._zeroconf.async_unregister_all_services()
            except _FAILURES as error:
                self._report("announce_goodbye_failed", reason=_said(error))
        await self._close()
        self.failure = "stopped"

    def _service(self, addresses: tuple[str, ...]) -> AsyncServiceInfo:
        label = self._cluster.encode()[:INSTANCE_CLUSTER_BYTES_MAX].decode(errors="ignore")
        return AsyncServiceInfo(
            SERVICE_TYPE,
            f"{label}-{self._gateway_id}.{SERVICE_TYPE}",
            port=self._http_port,
            parsed_addresses=list(addresses),
            server=f"din-{self._gateway_id}.local.",
            properties={
                "cluster": self._cluster,
                "gateway": self._gateway_id,
                "version": self._version,
                "http": str(self._http_port),
                **({"tls": str(self._tls_port)} if self._tls_port else {}),
            },
        )

    async def _close(self) -> None:
        if self._zeroconf is not None:
            found, self._zeroconf = self._zeroconf, None
            try:
                await found.async_close()
            except _FAILURES as error:
                self._report("announce_close_failed", reason=_said(error))


def _is_ours(address: str) -> bool:
    """An address whose interface has vanished is skipped, the others are announced."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
