"""A node's certificate: what it proves its name with, and how it stays valid.

Renewal is a short-lived child's work (`python -m din.enrol renew`), at two thirds of the
certificate's life; a machine that was off for longer renews as soon as it is back, as long as the
gateway allows. New connections take what lies on disk; open ones keep what they began with.
Without `cluster.json` a node has not joined, speaks plain text, and stays on its host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from din.agent.log import Log
from din.agent.search import BROWSE_MS, BrowseCall
from din.config import NodeConfig
from din.domain.enrolment import Membership
from din.errors import Conflict, DinError, Unavailable, Unreachable
from din.flow.backoff import Backoff
from din.system.clock import boot_ms, wall_clock_ms
from din.transport.find import browse, browse_command
from din.transport.membership import (
    CHILD_S,
    FOLDER,
    GATEWAYS_MAX,
    EnrolOrder,
    decode_enrol_answer,
    enrol_command,
    has_joined,
    read_membership,
)
from din.transport.tls import files_in
from din.transport.tls_identity import TlsIdentity
from din.wire.gateway_url import gateway_url

RENEWED_AFTER: Final = 2 / 3
RENEWAL_SPREAD: Final = 0.05
"""Of the life: nodes that joined together do not renew together."""
LOUD_BELOW: Final = 0.1
LOOK_S: Final = 30.0
"""Between two looks at the wall clock, which may jump."""
BACKOFF: Final = Backoff(base_ms=5_000, cap_ms=600_000)
SKEW_MS: Final = 600_000
"""So much earlier than it is made a certificate begins: a clock that is behind by less would find
each new one to be of the future, and renew without end."""
DEFAULT_CLUSTER: Final = "default"


def _ignore() -> None:
    """Nobody waits for it."""


class NodeTrust:
    """Of a node that has joined."""

    def __init__(
        self,
        folder: Path,
        log: Log,
        random: Random,
        gateways: Sequence[str] = (),
        browse: BrowseCall | None = None,
    ) -> None:
        """`gateways` are asked before those that the last certificate came with, `browse` finds
        another address when none of them answers: they may have moved meanwhile. Raises
        Unavailable when a file is missing or broken, UsageError."""
        self._folder = folder
        self._browse = browse
        named = (gateway_url(each, "https") for each in gateways)
        self._gateways = tuple(each for each in named if each.startswith("https:"))
        self._on_revived: Callable[[], None] = _ignore
        self._log = log
        self._random = random
        self.membership = read_membership(folder)
        self.identity = TlsIdentity(files_in(folder, "node"), self.membership.cluster, log.report)
        self._failures = 0
        self._retry_at_ms = 0
        self._share = RENEWED_AFTER + RENEWAL_SPREAD * (2 * random.random() - 1)
        self._task: asyncio.Task[None] | None = None

    def start(self, on_revived: Callable[[], None]) -> None:
        """Keep the certificate valid from now on; who is told when one that had ended was
        renewed."""
        self._on_revived = on_revived
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; a running child is ended too."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time to renew. Long before it was made the clock has gone back."""
        begins_ms, ends_ms = self.membership.begins_ms, self.membership.ends_ms
        due_ms = begins_ms + (ends_ms - begins_ms) * self._share
        return not begins_ms - SKEW_MS <= now_ms < due_ms

    async def _run(self) -> None:
        while True:
            now_ms = wall_clock_ms()
            if self.is_due(now_ms) and boot_ms() >= self._retry_at_ms:
                await self._renew(now_ms)
            await asyncio.sleep(LOOK_S * (0.5 + self._random.random() / 2))

    async def _renew(self, now_ms: int) -> None:
        had_ended = now_ms >= self.membership.ends_ms
        try:
            self.membership = await self._renewed()
        except DinError as error:
            delay_ms = BACKOFF.delay_ms(self._failures, self._random)
            self._failures += 1
            # Not by the time of day: it may be put back, and the pause would last until then.
            self._retry_at_ms = boot_ms() + int(delay_ms)
            self._tell(error, now_ms)
        else:
            self._failures, self._retry_at_ms = 0, 0
            self._log.report("certificate_renewed", ends_ms=self.membership.ends_ms)
            if had_ended:
                self._on_revived()

    async def _renewed(self) -> Membership:
        known = dict.fromkeys((*self._gateways, *self.membership.gateways))
        try:
            return await self._ask(tuple(known))
        except Unreachable:
            found = await self._browse(self.membership.cluster, BROWSE_MS) if self._browse else None
            announced = found.gateway.tls_urls if found is not None and found.gateway else ()
            # A hint: the renewing child believes whom the authority has certified.
            others = tuple(each for each in announced if each not in known)
            if not others:
                raise
            return await self._ask(others)

    async def _ask(self, gateways: tuple[str, ...]) -> Membership:
        return await run_renewal(
            EnrolOrder(folder=str(self._folder), gateways=gateways[:GATEWAYS_MAX])
        )

    def _tell(self, error: DinError, now_ms: int) -> None:
        left_ms = self.membership.ends_ms - now_ms
        life_ms = self.membership.ends_ms - self.membership.begins_ms
        facts: dict[str, object] = {
            "reason": error.message,
            "hint": error.hint,
            "left_s": left_ms // 1000,
        }
        if left_ms > life_ms * LOUD_BELOW:
            self._log.report("certificate_not_renewed", **facts)
        else:
            event = "certificate_ends_soon" if left_ms > 0 else "certificate_has_ended"
            self._log.error(event, **facts)


async def run_renewal(order: EnrolOrder) -> Membership:
    """What the child brings. Raises the error that it tells, or Unavailable."""
    try:
        child = await asyncio.create_subprocess_exec(
            *enrol_command("renew"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise Unavailable(f"the renewing process did not start: {error}") from None
    try:
        async with asyncio.timeout(CHILD_S):
            answer, _ = await child.communicate(msgspec.json.encode(order))
    except TimeoutError:
        raise Unavailable(f"the renewing process took more than {CHILD_S:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    return decode_enrol_answer(answer)


def open_trust(config: NodeConfig, node_id: str) -> NodeTrust | None:
    """The trust of a node that has joined; None for one that has not. Raises Conflict when it is
    told to serve another cluster or has another id than it joined with, Unavailable when a file is
    missing or broken."""
    folder = Path(config.state_dir) / FOLDER
    if not has_joined(folder):
        return None
    look = None
    if config.discovery_mode != "unicast" and not config.gateway:
        command = browse_command(config.interfaces_allowed, config.interfaces_denied)
        look = partial(browse, command=command)
    trust = NodeTrust(folder, Log(), Random(), config.gateway, look)
    cluster = trust.membership.cluster
    if config.cluster not in (DEFAULT_CLUSTER, cluster):
        raise Conflict(
            f"this node has joined cluster {cluster!r}, not {config.cluster!r}",
            hint=f"start it with --cluster {cluster}, or give it another --state-dir",
        )
    if trust.membership.node_id != node_id:
        raise Conflict(
            f"this node is {node_id}, and its certificate is of {trust.membership.node_id}",
            hint="was the state directory copied? join anew with a token: din node join -",
        )
    return trust
