"""Keeping one link up: dial, wait for its end, back off with jitter, dial again."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from random import Random
from typing import Final

from din.domain.trust import Role
from din.errors import DinError
from din.flow.backoff import Backoff
from din.transport.dial import DIAL_TIMEOUT_MS, dial, ignore_reports
from din.transport.limits import DEFAULT_LIMITS, LinkLimits
from din.transport.link import Link, LinkHandler, Report
from din.transport.tls_identity import TlsIdentity

REDIAL_BACKOFF: Final = Backoff(base_ms=100.0, cap_ms=5_000.0, jitter=0.5)
STEADY_S: Final = 5.0
"""A link that lived so long was no failed try: the next wait starts from the smallest again."""


class Redialler:
    """One link to one peer, dialled again whenever it ends, until `stop`.

    `own_id`, `session` and so on as for `dial`. The handler hears of every link that came up.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        own_id: str,
        session: int,
        handler: LinkHandler,
        random: Random,
        target_id: str = "",
        target_role: Role = "gateway",
        tls: TlsIdentity | None = None,
        timeout_ms: int = DIAL_TIMEOUT_MS,
        limits: LinkLimits = DEFAULT_LIMITS,
        backoff: Backoff = REDIAL_BACKOFF,
        report: Report = ignore_reports,
    ) -> None:
        self._addresses = tuple(addresses)
        self._own_id = own_id
        self._session = session
        self._handler = handler
        self._random = random
        self._target_id = target_id
        self._target_role: Role = target_role
        self._tls = tls
        self._timeout_ms = timeout_ms
        self._limits = limits
        self._backoff = backoff
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self.link: Link | None = None
        """The open link, None while there is none."""
        self.last_error: str = ""
        """Why the last dial failed; empty after a success."""

    def start(self) -> None:
        """Begin; repeating it is harmless."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def update(self, addresses: Sequence[str]) -> None:
        """Use these from the next dial on; while there is no link, that is now."""
        if tuple(addresses) != self._addresses or self.link is None:
            self._addresses = tuple(addresses)
            self._hurry.set()

    def address_changed(self, gone: Container[str]) -> None:
        """Our own addresses changed: a link by one that is gone is dead, and a dial that failed may
        succeed now."""
        link = self.link
        if link is not None and link.local_host in gone:
            link.close(f"{link.local_host} is no address of this machine any more")
        if link is None or not link.is_open:
            self._hurry.set()

    async def stop(self, reason: str = "stopping") -> None:
        """Dial no more and end the link in an orderly way, within `linger_ms`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        link, self.link = self.link, None
        if link is not None:
            link.close(reason, is_orderly=True)
            await link.wait_ended()

    # Inside.

    async def _run(self) -> None:
        attempt = 0
        loop = asyncio.get_running_loop()
        while True:
            self._hurry.clear()
            began_at = loop.time()
            if await self._dial():
                await self._until_down()
                if loop.time() - began_at > STEADY_S:
                    attempt = 0
            await self._pause(attempt)
            attempt += 1

    async def _dial(self) -> bool:
        try:
            self.link = await dial(
                self._addresses,
                own_id=self._own_id,
                session=self._session,
                handler=self._handler,
                target_id=self._target_id,
                target_role=self._target_role,
                tls=self._tls,
                timeout_ms=self._timeout_ms,
                limits=self._limits,
                report=self._report,
            )
        except DinError as error:
            if error.message != self.last_error:  # the same reason again is no news
                self._report("link cannot be dialled", target=self._target_id, error=error.message)
            self.last_error = error.message
            return False
        self.last_error = ""
        return True

    async def _until_down(self) -> None:
        link = self.link
        if link is not None:
            await link.wait_ended()
            self.link = None

    async def _pause(self, attempt: int) -> None:
        delay_s = self._backoff.delay_ms(attempt, self._random) / 1000
        try:
            async with asyncio.timeout(delay_s):
                await self._hurry.wait()
        except TimeoutError:
            return
