"""The life of one worker, from the fork on. Never returns."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Sequence
from typing import Final

from din.errors import DinError, ExecutionFailed, Internal
from din.system.arena import map_arena
from din.wire.worker import Fork, LoadFailed
from din.worker.confine import close_others, confine, die_with_parent, name_process
from din.worker.feed import MESSAGE_CHARACTERS_MAX, Feed
from din.worker.load import load, loaded_message, open_memory_file, resident_mib, warm
from din.worker.serve import Server
from din.worker.watchdog import Watchdog, monotonic_ms

EXIT_LOAD_FAILED: Final = 3
EXIT_BROKEN: Final = 70
WARM_MS_MAX: Final = 10_000


def run_worker(order: Fork, descriptors: Sequence[int], zygote_pid: int) -> None:
    """Become the worker that the order asks for: load, tell, serve, exit."""
    feeds: list[Feed] = []
    try:
        die_with_parent(zygote_pid)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        name_process("din worker", order.title or "din worker")
        memory_file = open_memory_file()
        close_others({*descriptors, memory_file})
        feeds += _open_feeds(order, descriptors[order.artifacts :])
        confine()
        server = _prepare(order, descriptors[: order.artifacts], feeds, memory_file)
    except BaseException as error:
        _tell(feeds, error)
        os._exit(EXIT_LOAD_FAILED)
    try:
        server.serve_forever()
    finally:
        os._exit(EXIT_BROKEN)


def _prepare(
    order: Fork, artifacts: Sequence[int], feeds: Sequence[Feed], memory_file: int
) -> Server:
    found = load(order, artifacts)
    watchdog = Watchdog(feeds, found.session.stop)
    watchdog.begin(None, 0, monotonic_ms() + WARM_MS_MAX)
    warm_ms = warm(found.session)
    watchdog.end()
    gc.collect()
    gc.freeze()
    feeds[0].send(loaded_message(found, warm_ms, resident_mib(memory_file)))
    return Server(found.session, feeds, watchdog)


def _open_feeds(order: Fork, descriptors: Sequence[int]) -> list[Feed]:
    feeds: list[Feed] = []
    for position, layout in enumerate(order.channels):
        control, arena = descriptors[2 * position : 2 * position + 2]
        memory = map_arena(arena, layout)
        os.close(arena)
        feeds.append(Feed(socket.socket(fileno=control), memory, layout))
    return feeds


def _tell(feeds: Sequence[Feed], error: BaseException) -> None:
    if isinstance(error, DinError):
        told = error
    elif isinstance(error, MemoryError):
        told = ExecutionFailed("the worker has no memory left to load the slice")
    else:
        told = Internal(f"worker: {type(error).__name__}: {error}")
    if feeds:
        feeds[0].send(LoadFailed(told.code, told.message[:MESSAGE_CHARACTERS_MAX], told.hint))
