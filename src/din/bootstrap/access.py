"""Wires who may do what: keys from the store, the audit log beside it, admission for the front."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from din.api.admission import Admission, Rules
from din.bootstrap.log import Log
from din.config import GatewayConfig
from din.domain.trust import GATEWAY
from din.errors import DinError
from din.gateway.telemetry.metrics import GatewayMetrics
from din.gateway.trust.access import GatewayAccess
from din.gateway.trust.audit import AuditLog
from din.gateway.trust.keys import KeyBook
from din.store.contract import Store
from din.system.clock import fine_monotonic_ms, wall_clock_iso, wall_clock_ms


@dataclass(frozen=True)
class Access:
    """Keys, audit log, what the API offers of both, and who is let in."""

    keys: KeyBook
    audit: AuditLog
    service: GatewayAccess
    admission: Admission


async def open_access(
    config: GatewayConfig,
    store: Store,
    metrics: GatewayMetrics,
    log: Log,
    stack: contextlib.AsyncExitStack,
    refusal_of_node: Callable[[str], str],
) -> Access:
    """Everything about access, closed by `stack`. Raises Internal for a key that cannot be read."""
    folder = Path(config.state_dir) / "audit"
    audit = AuditLog(folder, wall_clock_iso, fine_monotonic_ms, log)
    await audit.open()
    stack.push_async_callback(audit.close)
    keys = KeyBook(store, wall_clock_ms, os.urandom)
    await keys.load()
    flushing = asyncio.get_running_loop().create_task(keys.run())
    stack.push_async_callback(_stop, flushing, keys, audit, log)
    audit.note(GATEWAY, "gateway.start", config.cluster, after=msgspec.to_builtins(config))
    rules = Rules(
        cluster=config.cluster,
        is_key_required=config.require_key,
        refusal_of_node=refusal_of_node,
        count=metrics.count_auth_failure,
        tell=audit.refused,
    )
    admission = Admission(keys, rules, fine_monotonic_ms)
    return Access(keys, audit, GatewayAccess(keys, audit), admission)


async def _stop(flushing: asyncio.Task[None], keys: KeyBook, audit: AuditLog, log: Log) -> None:
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    audit.note(GATEWAY, "gateway.stop")
    try:
        await keys.flush()
    except DinError as error:
        log("times of last use not written", error=error.message)
