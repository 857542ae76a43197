"""The workers that hold one loaded slice: starts them, picks one for a request, replaces the dead.

A worker's life: forking -> loading -> ready -> gone. A death frees its place at once; the place is
filled again after a pause that doubles with each death and is forgotten after a healthy minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from din.agent.place import Worker, no_goodbye, on_loaded, on_worn, open_pair
from din.agent.recipe import Allowance, Recipe, open_paths
from din.agent.zygote import Zygote, back_off_ms
from din.agent.zygotes import Zygotes
from din.domain.crash import Death
from din.domain.model import Slice
from din.errors import (
    DeadlineExceeded,
    DinError,
    ExecutionFailed,
    Unavailable,
    UsageError,
)
from din.system.arena import arena_layout
from din.system.descriptors import close_all
from din.transport.channel import INFLIGHT_MAX, WORKER_DIED, WorkerChannel
from din.wire.worker import ArenaLayout, Fork, Given, Loaded, Worn

WORKERS_MAX: Final = 32
HEALTHY_S: Final = 60.0
LOAD_TIMEOUT_S: Final = 120.0
DRAIN_TIMEOUT_S: Final = 5.0
EXIT_TIMEOUT_S: Final = 1.0
REPLACE_PAUSE_S: Final = 60.0
"""Until the next try when no successor of a worn worker could be started."""


class PoolSettings(Struct, frozen=True, kw_only=True):
    """Sizes and times of a pool; tests shorten them."""

    layout: ArenaLayout = arena_layout()
    """Arena of the agent's channel, and of the direct one."""
    load_timeout_s: float = LOAD_TIMEOUT_S
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    healthy_s: float = HEALTHY_S
    replace_pause_s: float = REPLACE_PAUSE_S


OnWorkerReady = Callable[[int, int, int, ArenaLayout], None]
"""(worker id, socket descriptor, arena descriptor, layout): a worker is ready; the descriptors are
of the channel meant for a gateway, -1 where none was wanted. They stay the pool's, open until
`on_worker_died`: send them on as often as needed."""
OnWorkerDied = Callable[[int, Death], None]
"""(worker id, how): a worker that was ready has died, not by `stop`, or one that loaded did by its
own fault. Worker id 0 = a dead worker could not be replaced; it is tried again."""


OnWorkerLeaving = Callable[[int, WorkerChannel, Worn], Awaitable[None]]
"""(worker id, the agent's channel, why): give a worker nothing new; returns once nothing runs in
it. Its successor is ready."""


OpenFiles = Callable[[tuple[str, ...]], Awaitable[list[int]]]
"""Descriptors of the slice's files, one each, opened anew for each worker; the pool closes them.
Raises DinError."""


class WorkerPool:
    """Workers for one slice. All calls in the loop's thread."""

    def __init__(
        self,
        zygote: Zygote | Zygotes,
        *,
        on_worker_ready: OnWorkerReady,
        on_worker_died: OnWorkerDied,
        on_worker_leaving: OnWorkerLeaving = no_goodbye,
        before_replacing: Callable[[], None] = lambda: None,
        settings: PoolSettings | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        self._zygote = zygote
        self._open_files = open_files or open_paths
        self._on_worker_ready = on_worker_ready
        self._on_worker_died = on_worker_died
        self._on_worker_leaving = on_worker_leaving
        self._before_replacing = before_replacing
        self._settings = settings or PoolSettings()
        self._workers: dict[int, Worker] = {}
        self._places: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self.restarts = 0
        """Workers that were replaced since `start`."""

    @property
    def ready(self) -> int:
        """Workers that could take a request or are busy with one."""
        return sum(worker.is_ready for worker in self._workers.values())

    @property
    def inflight(self) -> int:
        """Requests in all workers, as far as the agent feeds them."""
        return sum(each.channel.inflight for each in self._workers.values() if each.channel)

    async def start(
        self,
        slice_: Slice,
        artifact_paths: Sequence[str | Path],
        workers: int,
        backend_options: dict[str, str],
        *,
        wants_direct: bool,
        allowance: Allowance | None = None,
    ) -> Loaded:
        """Load the slice in `workers` workers and keep that many alive; the first one's facts.

        Raises BadModel, UsageError, TooLarge, ExecutionFailed, Unavailable or DeadlineExceeded as
        the first worker that failed did; nothing is left running then.
        """
        if not 1 <= workers <= WORKERS_MAX:
            raise UsageError(
                f"{workers} workers for slice {slice_.name!r} are not possible",
                hint=f"between 1 and {WORKERS_MAX}",
            )
        paths = tuple(map(str, artifact_paths))
        recipe = Recipe(slice_, paths, backend_options, wants_direct, allowance or Allowance())
        loop = asyncio.get_running_loop()
        launches = [loop.create_task(self._launch(recipe)) for _ in range(workers)]
        try:
            await asyncio.wait(launches, return_when=asyncio.FIRST_EXCEPTION)
            found = [launch.result() for launch in launches if launch.done()]
        except BaseException:
            for launch in launches:
                launch.cancel()
            await asyncio.gather(*launches, return_exceptions=True)
            await self.stop()
            raise
        self._places = [loop.create_task(self._keep(recipe, worker)) for worker in found]
        return found[0].loaded.result()

    @property
    def channels(self) -> tuple[WorkerChannel, ...]:
        """Of every ready worker, for an owner that keeps queues of its own."""
        return tuple(
            each.channel
            for each in self._workers.values()
            if each.is_ready and each.channel is not None and each.channel.is_open
        )

    def pick(self) -> WorkerChannel | None:
        """The ready worker with the fewest requests, or None when each has its two."""
        best: WorkerChannel | None = None
        for worker in self._workers.values():
            channel = worker.channel
            if worker.is_ready and channel is not None and channel.is_open:
                if channel.inflight == 0:
                    return channel
                if best is None or channel.inflight < best.inflight:
                    best = channel
        return best if best is not None and best.inflight < INFLIGHT_MAX else None

    def channel(self, worker_id: int) -> WorkerChannel | None:
        """The agent's channel to one ready worker."""
        worker = self._workers.get(worker_id)
        return worker.channel if worker is not None and worker.is_ready else None

    def end(self, worker_id: int, reason: str) -> None:
        """Kill a worker that is stuck; it is replaced. Unknown ones are left alone."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.is_ready and worker.channel is not None:
            worker.channel.close()
            self._on_broken(worker, reason)

    def give_up(self) -> None:
        """Replace no worker any more; those that live go on until `stop`."""
        for task in self._places:
            task.cancel()

    async def stop(self) -> None:
        """Let running requests end within the drain time, then end every worker."""
        self._is_stopping = True
        for task in self._places:
            task.cancel()
        await asyncio.gather(*self._places, return_exceptions=True)
        self._places = []
        await self._drain()
        leaving = list(self._workers.values())
        for worker in leaving:
            if worker.channel is not None:
                worker.channel.close()
        for worker in leaving:
            if worker.process is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(worker.exited.wait(), EXIT_TIMEOUT_S)
            self._retire(worker, "stopped")

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.drain_timeout_s
        for worker in self._workers.values():
            worker.is_ready = False
        while self.inflight and loop.time() < end:  # noqa: ASYNC110 (answers come by callback)
            await asyncio.sleep(0.01)

    async def _keep(self, recipe: Recipe, worker: Worker) -> None:
        """Keep one place filled, for ever."""
        loop = asyncio.get_running_loop()
        failures = 0
        current: Worker | None = worker
        while True:
            if current is not None:
                started = loop.time()
                fresh = await self._outlive(recipe, current)
                if fresh is not None:
                    current = fresh
                    continue
                if loop.time() - started >= self._settings.healthy_s:
                    failures = 0
            failures += 1
            await asyncio.sleep(back_off_ms(failures) / 1000)
            self.restarts += 1
            try:
                current = await self._launch(recipe)
            except Exception as error:  # whatever it is, the place is to be filled later
                current = None
                why = error.message if isinstance(error, DinError) else repr(error)
                self._on_worker_died(0, Death("left", f"no new worker: {why}"))

    async def _outlive(self, recipe: Recipe, worker: Worker) -> Worker | None:
        """Wait until a worker ends; one that says it is worn is followed by the one returned, which
        is ready before it goes."""
        while True:
            await worker.changed.wait()
            if worker.exited.is_set():
                return None
            worker.changed.clear()
            if worker.worn is not None and worker.channel is not None:
                try:
                    fresh = await self._replace(recipe, worker, worker.worn, worker.channel)
                except DinError as error:
                    self._on_worker_died(0, Death("left", f"no new worker: {error.message}"))
                    await self._pause(worker)
                else:
                    return fresh

    async def _replace(
        self, recipe: Recipe, worker: Worker, worn: Worn, channel: WorkerChannel
    ) -> Worker:
        self._before_replacing()
        fresh = await self._launch(recipe)
        await self._on_worker_leaving(worker.worker_id, channel, worn)
        worker.is_leaving = True
        channel.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.exited.wait(), EXIT_TIMEOUT_S)
        self._retire(worker, "replaced")
        return fresh

    async def _pause(self, worker: Worker) -> None:
        """Until the worker is to be replaced once more, or ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.exited.wait(), self._settings.replace_pause_s)
        worker.changed.set()

    async def _launch(self, recipe: Recipe) -> Worker:
        """One worker, loaded and ready. Raises DinError and nothing else."""
        loop = asyncio.get_running_loop()
        worker = Worker(self._zygote.next_worker_id(), loop.create_future())
        self._workers[worker.worker_id] = worker
        try:
            await self._fork(recipe, worker)
            async with asyncio.timeout(self._settings.load_timeout_s):
                await worker.loaded
        except BaseException as error:
            self._retire(worker, str(error))
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    f"slice {recipe.slice_.name!r} was not loaded within "
                    f"{self._settings.load_timeout_s:g} s"
                ) from error
            if isinstance(error, OSError):
                raise Unavailable(
                    f"no worker can be made for slice {recipe.slice_.name!r}: {error.strerror}",
                    hint="raise the node's limit of open files (ulimit -n), or free some memory",
                ) from error
            raise
        worker.is_ready = True
        socket_fd, arena_fd = worker.direct or (-1, -1)
        self._on_worker_ready(worker.worker_id, socket_fd, arena_fd, self._settings.layout)
        return worker

    async def _fork(self, recipe: Recipe, worker: Worker) -> None:
        layout = self._settings.layout
        slice_ = recipe.slice_
        given: list[int] = []
        """What the worker gets; closed here afterwards."""
        try:
            given += await self._open_files(recipe.artifact_paths)
            self._open_channel(worker, layout, given)
            if recipe.wants_direct:
                self._open_direct(worker, layout, given)
            order = Fork(
                worker_id=worker.worker_id,
                backend=slice_.backend,
                backend_options=recipe.backend_options,
                inputs=slice_.inputs,
                outputs=slice_.outputs,
                artifacts=tuple(Given(each.role, each.name) for each in slice_.artifacts),
                channels=(layout,) * (1 + recipe.wants_direct),
                adapter=slice_.adapter,
                title=f"din worker {slice_.name}",
                memory_mib_max=recipe.allowance.memory_mib_max,
                growth_mib_max=recipe.allowance.growth_mib_max,
                requests_max=recipe.allowance.requests_max,
            )
            process = await self._zygote.fork(
                order, given, lambda death: self._on_exit(worker, death)
            )
            if worker.exited.is_set():
                process.close()
            else:
                worker.process = process
        finally:
            close_all(given)

    def _open_channel(self, worker: Worker, layout: ArenaLayout, given: list[int]) -> None:
        ours, arena = open_pair(layout, given)
        worker.channel = channel = WorkerChannel(
            asyncio.get_running_loop(),
            socket.socket(fileno=ours),
            arena,
            layout,
            lambda message: on_loaded(worker, message),
            lambda reason: self._on_broken(worker, reason),
        )
        channel.on_worn = partial(on_worn, worker)

    def _open_direct(self, worker: Worker, layout: ArenaLayout, given: list[int]) -> None:
        worker.direct = open_pair(layout, given)

    def _on_broken(self, worker: Worker, reason: str) -> None:
        """The agent's channel ended: whatever the worker still does, nobody asked for it."""
        worker.broken_reason = reason
        worker.is_ready = False
        if worker.process is not None:
            worker.process.kill()
        if worker.death is not None:
            self._bury(worker, worker.death)

    def _on_exit(self, worker: Worker, death: Death) -> None:
        worker.death = death
        # What it said last may still lie in its channel: the end of file comes after that.
        if worker.channel is None or not worker.channel.is_open:
            self._bury(worker, death)

    def _bury(self, worker: Worker, death: Death) -> None:
        running = worker.channel.interrupted if worker.channel is not None else ""
        worker.death = replace(death, running=running)
        if worker.broken_reason not in ("", WORKER_DIED):
            reason = f"{worker.broken_reason}; the agent ended it"
            worker.death = replace(worker.death, kind="stuck", reason=reason)
        worker.exited.set()
        worker.changed.set()
        self._retire(worker, worker.death.reason)

    def _retire(self, worker: Worker, reason: str) -> None:
        """Forget a worker and close what belongs to it; repeating it is harmless."""
        if self._workers.pop(worker.worker_id, None) is None:
            return
        was_loaded = worker.loaded.done() and not worker.loaded.cancelled()
        was_loaded = was_loaded and worker.loaded.exception() is None
        worker.is_ready = False
        worker.close()
        if not worker.loaded.done():
            worker.loaded.set_exception(
                ExecutionFailed(f"the worker died while it loaded the slice: {reason}")
            )
            worker.loaded.exception()  # somebody may not wait for it any more
        death = worker.death or Death("left", reason)
        if not (self._is_stopping or worker.is_leaving) and (was_loaded or death.is_own_fault):
            self._on_worker_died(worker.worker_id, death)
