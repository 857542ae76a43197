"""One place in a pool of workers, and who fills it."""

from __future__ import annotations

import asyncio
import os

from din.agent.zygote import WorkerProcess
from din.domain.crash import Death
from din.errors import error_of_code
from din.system.arena import create_arena
from din.system.descriptors import close_all, control_pair
from din.transport.channel import WorkerChannel
from din.wire.worker import ArenaLayout, Loaded, LoadFailed, Worn


async def no_goodbye(worker_id: int, channel: WorkerChannel, worn: Worn) -> None:
    """For owners that feed a worker through `pick` alone, and not at that moment."""
    del worker_id, channel, worn


class Worker:
    """A worker from the fork to its end."""

    def __init__(self, worker_id: int, loaded: asyncio.Future[Loaded]) -> None:
        self.worker_id = worker_id
        self.loaded = loaded
        self.exited = asyncio.Event()
        self.channel: WorkerChannel | None = None
        self.process: WorkerProcess | None = None
        self.direct: tuple[int, ...] = ()
        """Socket and arena for a gateway."""
        self.changed = asyncio.Event()
        """It has ended, or is worn."""
        self.worn: Worn | None = None
        self.is_leaving = False
        self.is_ready = False
        self.broken_reason = ""
        self.death: Death | None = None

    def close(self) -> None:
        """End it, and give back what belongs to it."""
        if self.channel is not None:
            self.channel.close()
        close_all(self.direct)
        self.direct = ()
        if self.process is not None:
            self.process.kill()
            self.process.close()


def on_worn(worker: Worker, worn: Worn) -> None:
    """It wants to be replaced."""
    worker.worn = worn
    worker.changed.set()


def on_loaded(worker: Worker, message: Loaded | LoadFailed) -> None:
    """How loading went."""
    if worker.loaded.done():
        return
    if isinstance(message, Loaded):
        worker.loaded.set_result(message)
    else:
        worker.loaded.set_exception(error_of_code(message.code, message.message, message.hint))


def open_pair(layout: ArenaLayout, given: list[int]) -> tuple[int, int]:
    """A feeder's socket and arena, the caller's; the worker's ends are added to what it is given.

    Raises OSError and Unavailable; nothing is left open then but what is in `given`.
    """
    ours, theirs = control_pair()
    with ours:
        given.append(theirs.detach())
        arena = create_arena(layout)
        given.append(arena)
        kept = os.dup(arena)
        return ours.detach(), kept
