"""The life of one worker, from the fork on. Never returns."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from din.backends.options import threads_of
from din.backends.registry import writes_files
from din.domain.foreign import is_foreign
from din.domain.probe import PROBE
from din.errors import DeadlineExceeded, DinError, ExecutionFailed, Internal
from din.sandbox.enter import TASKS_MAX, confine
from din.sandbox.namespaces import FOLDER
from din.system.arena import map_arena
from din.wire.worker import MESSAGE_BYTES_MAX, Fork, LoadFailed
from din.worker.confine import Place, close_others, die_with_parent, name_process
from din.worker.feed import MESSAGE_CHARACTERS_MAX, Feed
from din.worker.load import load, loaded_message, warm
from din.worker.memory import memory_bytes_max, open_memory_file, open_statm, share_mib
from din.worker.serve import Server
from din.worker.watchdog import Watchdog, monotonic_ms
from din.worker.wear import Wear

EXIT_LOAD_FAILED: Final = 3
EXIT_BROKEN: Final = 70
WARM_MS_MAX: Final = 60_000


def run_worker(order: Fork, descriptors: Sequence[int], zygote_pid: int, place: Place) -> None:
    """Become the worker that the order asks for: load, tell, serve, exit."""
    feeds: list[Feed] = []
    try:
        die_with_parent(zygote_pid)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        name_process("din worker", order.title or "din worker", place.processes)
        memory_file = open_memory_file(place.processes)
        limit_bytes = memory_bytes_max(order, place.processes)
        statm = open_statm(place.processes)
        close_others({*descriptors, memory_file, statm}, place.empty)
        feeds += _open_feeds(order, descriptors[len(order.artifacts) :])
        _confine(order, place, limit_bytes)
        server = _prepare(order, descriptors[: len(order.artifacts)], feeds, memory_file, statm)
    except BaseException as error:
        try:
            _tell(descriptors[len(order.artifacts)], error)
        finally:
            os._exit(EXIT_LOAD_FAILED)
    try:
        server.serve_forever()
    finally:
        os._exit(EXIT_BROKEN)


def _confine(order: Fork, place: Place, limit_bytes: int) -> None:
    wants_folder = order.backend == PROBE or writes_files(order.backend)
    threads = threads_of(order.backend_options, len(os.sched_getaffinity(0)))
    confine(
        place.surroundings,
        tasks_max=TASKS_MAX + threads,
        memory_bytes_max=limit_bytes,
        wants_folder=wants_folder,
        port=int(order.backend_options["port"]) if is_foreign(order.backend) else 0,
        is_insecure=place.is_insecure,
        makes_code=place.makes_code,
    )
    if wants_folder:
        tempfile.tempdir = FOLDER  # where an engine writes what it can tell in no other way


def _prepare(
    order: Fork, artifacts: Sequence[int], feeds: Sequence[Feed], memory_file: int, statm: int
) -> Server:
    found = load(order, artifacts)
    watchdog = Watchdog(feeds, found.session.stop)
    watchdog.begin(None, 0, monotonic_ms() + WARM_MS_MAX)
    try:
        warm_ms = warm(found.session)
    except DinError as error:
        if not watchdog.end():
            raise
        raise DeadlineExceeded(
            f"a first run on made-up input did not end within {WARM_MS_MAX // 1000} s",
            hint="cut the model, give it more threads, or place it on a faster node",
        ) from error
    watchdog.end()
    gc.collect()
    gc.freeze()
    feeds[0].send(loaded_message(found, warm_ms, share_mib(memory_file)))
    return Server(
        found.session, feeds, watchdog, order.memory_mib_max, Wear(order, statm).after_request
    )


def _open_feeds(order: Fork, descriptors: Sequence[int]) -> list[Feed]:
    feeds: list[Feed] = []
    for position, layout in enumerate(order.channels):
        control, arena = descriptors[2 * position : 2 * position + 2]
        memory = map_arena(arena, layout)
        os.close(arena)
        feeds.append(Feed(socket.socket(fileno=control), memory, layout))
    return feeds


def _tell(control: int, error: BaseException) -> None:
    """Over the owner's socket as it came: there may have been no memory to map its arena."""
    if isinstance(error, DinError):
        told = error
    elif isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM:
        told = ExecutionFailed(
            "the worker has no memory left to load the slice",
            hint="free memory on the node, or raise its limit (worker_memory_factor, ulimit -v)",
        )
    else:
        told = Internal(f"worker: {type(error).__name__}: {error}")
    failed = LoadFailed(told.code, told.message[:MESSAGE_CHARACTERS_MAX], told.hint)
    owner = socket.socket(fileno=control)
    with suppress(OSError):  # the owner has gone, or nothing is left to read
        owner.send(msgspec.msgpack.encode(failed), socket.MSG_NOSIGNAL)
        # A socket that closes with something unread resets the other end, which loses our word.
        while owner.recv(MESSAGE_BYTES_MAX, socket.MSG_DONTWAIT):
            pass
    owner.detach()  # closed by the end of the process, and not before
