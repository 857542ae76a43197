"""The agent's side of multicast discovery: starts the browsing child, reads its lines, ends it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from din.domain.malformed import MALFORMED

GRACE_MS: Final = 2000
"""Beyond the browsing time, for the child's own start and end."""
LINE_BYTES_MAX: Final = 8192
LINES_MAX: Final = 128
BROWSE_COMMAND: Final = (sys.executable, "-P", "-m", "din.transport.browse")


class Found(Struct, frozen=True):
    """A gateway that announced itself. A hint: ask it before you believe it."""

    cluster: str
    gateway_id: str
    version: str
    urls: tuple[str, ...]
    tls_urls: tuple[str, ...] = ()
    """Where it speaks TLS; empty = nowhere."""


class Browsed(Struct, frozen=True):
    """What browsing brought; `reason` says why there is no gateway."""

    gateway: Found | None
    reason: str = ""


class _Line(Struct):
    cluster: str = ""
    gateway_id: str = ""
    version: str = ""
    urls: tuple[str, ...] = ()
    tls_urls: tuple[str, ...] = ()
    error: str = ""


def browse_command(allow: Sequence[str], deny: Sequence[str]) -> tuple[str, ...]:
    """The child's command with patterns of interfaces to browse on, and of those never to."""
    allowed = (f"--allow={each}" for each in allow)
    return (*BROWSE_COMMAND, *allowed, *(f"--deny={each}" for each in deny))


async def browse(cluster: str, timeout_ms: int, command: Sequence[str] = BROWSE_COMMAND) -> Browsed:
    """The first gateway of the cluster that announces itself. Never raises; takes at most
    `timeout_ms` and the child's start."""
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            f"--timeout-ms={timeout_ms}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LINE_BYTES_MAX,
        )
    except OSError as error:
        return Browsed(None, f"the browsing process did not start: {error}")
    assert child.stdout is not None
    others: set[str] = set()
    try:
        async with asyncio.timeout((timeout_ms + GRACE_MS) / 1000):
            return await _first_of(cluster, child.stdout, others) or _nothing(
                cluster, timeout_ms, others, await child.wait()
            )
    except TimeoutError:
        return _nothing(cluster, timeout_ms, others, 0)
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.communicate()  # to the end of the pipe, or its transport stays open


async def _first_of(cluster: str, lines: asyncio.StreamReader, others: set[str]) -> Browsed | None:
    for _ in range(LINES_MAX):
        try:
            raw = await lines.readline()
            if not raw:
                return None
            line = msgspec.json.decode(raw, type=_Line)
        except (ValueError, *MALFORMED) as error:
            return Browsed(None, f"the browsing process wrote something unexpected: {error}")
        if line.error:
            return Browsed(None, line.error)
        if line.cluster == cluster and line.urls:
            found = Found(line.cluster, line.gateway_id, line.version, line.urls, line.tls_urls)
            return Browsed(found)
        others.add(line.cluster)
    return None


def _nothing(cluster: str, timeout_ms: int, others: set[str], exit_code: int) -> Browsed:
    if exit_code:
        return Browsed(None, f"the browsing process ended with code {exit_code}")
    seen = f"; heard of {', '.join(sorted(others))}" if others else ""
    reason = f"no gateway of cluster {cluster!r} announced itself in {timeout_ms / 1000:g} s{seen}"
    return Browsed(None, reason)
