"""Slices on this node: pulled, loaded, kept, drained.

    absent --PREPARE--> loading --> loaded --UNLOAD--> draining (served until quiet) --> absent
    loading --failed--> absent, and PREPARE_FAILED says why
    loaded --PREPARE again--> loaded: edges and peers are taken over, PREPARED at once
    loaded --a peer can be dialled now, or no more--> loaded: PREPARED says which cannot
    loading, loaded --lease over--> as after UNLOAD, and PREPARE_FAILED says so

Repeating any order is harmless: a gateway that came back says everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from din.agent.admission import Admission
from din.agent.executor import Executor
from din.agent.files import SliceFiles
from din.agent.foreign import ForeignServers
from din.agent.leasing import LeaseWatch, over_error
from din.agent.named import Named
from din.agent.offers import Offers
from din.agent.peers import Peers
from din.agent.pool import WorkerPool
from din.agent.recipe import open_paths
from din.agent.unsealer import NO_FILE, Unsealer
from din.agent.zygotes import Zygotes
from din.domain.crash import Death
from din.domain.foreign import is_foreign
from din.domain.model import Artifact, Slice
from din.domain.node import SLICES_HELD_MAX
from din.errors import Conflict, DeadlineExceeded, DinError, Internal, TooLarge
from din.execution.events import SliceKey, SliceLoaded, SliceUnloaded
from din.execution.quarantine import Quarantine
from din.system.descriptors import close_all
from din.transport.channel import WorkerChannel
from din.wire.messages import (
    AnyMessage,
    Prepare,
    Prepared,
    PrepareFailed,
    Renew,
    Unload,
    WorkerDied,
)
from din.wire.worker import ArenaLayout, Loaded, Worn

Report = Callable[..., None]


class Teller(Protocol):
    """The way back to the gateway."""

    def __call__(self, message: AnyMessage) -> bool:
        """False when there is no link to it now; it asks again when it is back."""
        ...


class _Held:
    """One slice, loading or loaded."""

    __slots__ = ("loaded", "order", "pool", "task", "undialable")

    def __init__(self, order: Prepare) -> None:
        self.order = order
        self.task: asyncio.Task[None] | None = None
        self.pool: WorkerPool | None = None
        self.loaded: Loaded | None = None
        self.undialable: tuple[str, ...] = ()
        """As the gateway was told."""


class Slices:
    """Everything that gateways had this node load. All calls in the loop's thread."""

    def __init__(
        self,
        zygote: Zygotes,
        foreign: ForeignServers,
        executor: Executor,
        peers: Peers,
        named: Named,
        offers: Offers,
        files: SliceFiles,
        unsealer: Unsealer,
        tell: Teller,
        admission: Admission,
        report: Report,
    ) -> None:
        self._zygote = zygote
        self._foreign = foreign
        self._executor = executor
        self._peers = peers
        self._named = named
        self._offers = offers
        self._files = files
        self._unsealer = unsealer
        self._leases = LeaseWatch(self._lease_over)
        self._tell = tell
        self._admission = admission
        self._quarantine = Quarantine()
        self._report = report
        self._held: dict[SliceKey, _Held] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def prepare(self, order: Prepare) -> None:
        """Load a slice, or take over new edges and peers of one that is here."""
        key = (order.epoch, order.slice.index)
        held = self._held.get(key)
        if held is not None and held.order.slice.slice_id != order.slice.slice_id:
            self._tell_failed(order, Conflict("another slice is held under this epoch and index"))
            return
        if held is None:
            now_ms = asyncio.get_running_loop().time() * 1000
            part = order.slice
            refusal = self._quarantine.refusal(part.slice_id, now_ms, part.name)
            if refusal is not None:
                self._tell_failed(order, refusal)
                return
            if len(self._held) >= SLICES_HELD_MAX:
                error = TooLarge(
                    f"this node holds {SLICES_HELD_MAX} slices already",
                    hint="remove models that nobody uses, or cut this one less often",
                )
                self._tell_failed(order, error)
                return
            held = self._held[key] = _Held(order)
        held.order = order
        self._named.name(order.epoch, order.peers)
        self._leases.grant(key, order)
        if held.task is None:
            held.task = asyncio.get_running_loop().create_task(self._prepare(key, held))

    def reach_changed(self, node_id: str) -> None:
        """A peer got a link, or could not be dialled: the plan says which edges are relayed."""
        is_reached = self._peers.link(node_id) is not None
        for held in list(self._held.values()):
            is_told = node_id in held.undialable
            if held.loaded is not None and node_id in held.order.peers and is_told == is_reached:
                self.prepare(held.order)

    def gateway_opened(self) -> None:
        """There is a new link to the gateway."""
        self._foreign.tell_all()

    def unload(self, order: Unload) -> None:
        """Drain one slice of a deployment, or all of them, then drop it."""
        for key, held in list(self._held.items()):
            is_meant = order.slice_index is None or key[1] == order.slice_index
            if key[0] == order.epoch and is_meant:
                self._unload(key, held)

    def _unload(self, key: SliceKey, held: _Held) -> None:
        self._leases.end(key)
        if held.loaded is None:
            self._forget(key)
            self._admission.release(key)
            if held.task is not None:
                held.task.cancel()
        else:
            self._executor.give(SliceUnloaded(key))

    def unload_all(self) -> None:
        """Drain everything: the gateway that wanted it is ours no more, and would never say so."""
        for key, held in list(self._held.items()):
            self._unload(key, held)

    def renew(self, order: Renew) -> None:
        """Hold the sealed slices of a deployment longer."""
        self._leases.renew(order)

    def _lease_over(self, key: SliceKey) -> None:
        held = self._held.get(key)
        if held is not None:
            self._report("lease_over", slice=held.order.slice.name)
            self._tell_failed(held.order, over_error())
            self._unload(key, held)

    def drop(self, key: SliceKey) -> None:
        """Nothing needs the slice any more: stop its workers."""
        self._leases.end(key)
        held = self._held.get(key)
        self._forget(key)
        if held is None or held.pool is None:
            return
        leaving = asyncio.get_running_loop().create_task(self._leave(key, held, held.pool))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Stop everything at once."""
        self._leases.close()
        tasks = [held.task for held in self._held.values() if held.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._leaving, return_exceptions=True)
        pools = [held.pool for held in self._held.values() if held.pool is not None]
        self._held.clear()
        await asyncio.gather(*(pool.stop() for pool in pools))
        await self._foreign.stop()
        self._executor.bury_workers("the node stops")

    # Loading.

    async def _prepare(self, key: SliceKey, held: _Held) -> None:
        order = held.order
        try:
            async with asyncio.timeout(max(order.remaining_ms, 0) / 1000):
                if held.loaded is None:
                    held.loaded = await self._load(key, held)
                await self._settle(key, held)
        except TimeoutError:
            error = DeadlineExceeded(
                f"slice {order.slice.name!r} was not loaded within {order.remaining_ms} ms"
            )
            self._give_up(key, held, error)
        except DinError as error:
            self._give_up(key, held, error)
        except Exception as error:
            self._give_up(key, held, Internal(f"loading failed: {type(error).__name__}: {error}"))
        finally:
            held.task = None
            if self._held.get(key) is held and held.order is not order:
                self.prepare(held.order)  # it was said again, differently, meanwhile

    async def _load(self, key: SliceKey, held: _Held) -> Loaded:
        order = held.order
        self._admission.claim(key, order)
        part, options = order.slice, order.backend_options
        if is_foreign(part.backend):
            options = await self._foreign.options(part.backend)
        paths = await self._files.use(_files_of(part), order.artifact_url)
        pool = WorkerPool(
            self._zygote,
            on_worker_ready=partial(self._on_worker_ready, key),
            on_worker_died=partial(self._on_worker_died, key),
            on_worker_leaving=partial(self._on_worker_leaving, key),
            before_replacing=partial(self._admission.check_one_more, order),
            open_files=partial(self._open_files, key, held),
        )
        held.pool = pool
        try:
            self._admission.claim(key, order)  # fetching may have taken minutes
            loaded = await pool.start(
                replace(part, artifacts=_files_of(part)),
                paths,
                order.workers,
                options,
                wants_direct=True,
                allowance=self._admission.allowance(order),
            )
        except BaseException:
            held.pool = None
            self._files.release(_files_of(part))
            await pool.stop()
            raise
        self._report(
            "slice_loaded",
            model=order.model_id,
            slice=order.slice.name,
            workers=order.workers,
            load_ms=round(loaded.load_ms, 1),
            memory_mib=loaded.memory_mib,
            engine=loaded.engine or None,
        )
        self._admission.settle(key, order, loaded.memory_mib)
        return loaded

    async def _open_files(self, key: SliceKey, held: _Held, paths: tuple[str, ...]) -> list[int]:
        """What a worker may read: the files, or what of them was verified and opened."""
        order = held.order
        if not self._unsealer.is_needed(order):
            return await open_paths(paths)
        self._leases.check(key)
        if not paths:
            await self._unsealer.open(order, NO_FILE)
        opened: list[int] = []
        try:
            for index, path in enumerate(paths):
                opened.append(await self._unsealer.open(order, index, path))
        except BaseException:
            close_all(opened)
            raise
        return opened

    async def _settle(self, key: SliceKey, held: _Held) -> None:
        """Edges to the core, links to the peers, word to the gateway."""
        order, loaded = held.order, held.loaded
        assert loaded is not None, "settled after loading"
        assert held.pool is not None, "settled after loading"
        event = SliceLoaded(order.epoch, order.slice, order.edges, order.adapted_edges)
        self._executor.give(event)
        self._executor.watch_workers(key, held.pool.channels, "it closed while it was loaded")
        held.undialable = await self._peers.dial_all(order.peers)
        self._tell(
            Prepared(
                order.epoch,
                order.slice.index,
                loaded.load_ms,
                loaded.warm_ms,
                loaded.memory_mib,
                held.undialable,
            )
        )

    def _give_up(self, key: SliceKey, held: _Held, error: DinError) -> None:
        if held.loaded is None:
            self._admission.release(key)
            if self._held.get(key) is held:
                self._forget(key)
                self._leases.end(key)
            self._report("slice_not_loaded", slice=held.order.slice.name, reason=error.message)
            self._tell_failed(held.order, error)
        else:
            self._report("slice_not_settled", slice=held.order.slice.name, reason=error.message)

    def _tell_failed(self, order: Prepare, error: DinError) -> None:
        about = (order.epoch, order.slice.index)
        self._tell(PrepareFailed(*about, error.code, error.message, error.hint))

    # Leaving.

    async def _leave(self, key: SliceKey, held: _Held, pool: WorkerPool) -> None:
        await self._offers.revoke(key)
        await pool.stop()
        if key not in self._held:  # else it was asked for again, and has claimed what it needs
            self._admission.release(key)
        self._executor.bury_workers("its slice was unloaded")
        self._files.release(_files_of(held.order.slice))
        self._report("slice_unloaded", slice=held.order.slice.name)

    def _forget(self, key: SliceKey) -> None:
        """Hold a slice no more; with the last one of its deployment its nodes lose their place."""
        self._held.pop(key, None)
        if all(epoch != key[0] for epoch, _ in self._held):
            self._named.retire(key[0])

    # Workers.

    def _on_worker_ready(
        self, key: SliceKey, worker_id: int, socket_fd: int, arena_fd: int, layout: ArenaLayout
    ) -> None:
        self._offers.worker_ready(key, worker_id, socket_fd, arena_fd, layout)
        held = self._held.get(key)
        if held is not None and held.pool is not None and held.loaded is not None:
            self._executor.watch_workers(key, held.pool.channels, "it was replaced")

    def end_worker(self, worker_id: int) -> None:
        """The gateway that feeds it gave it up; without effect on one that has gone."""
        for held in self._held.values():
            if held.pool is not None:
                held.pool.end(worker_id, "it did not answer the gateway")

    async def _on_worker_leaving(
        self, key: SliceKey, worker_id: int, channel: WorkerChannel, worn: Worn
    ) -> None:
        """Its successor takes what comes; what it has it finishes."""
        await asyncio.gather(self._executor.release(channel), self._offers.revoke(key, worker_id))
        about = {"requests": worn.requests, "grown_mib": worn.grown_mib}
        self._report("worker_replaced", slice=key[1], worker=worker_id, **about)

    def _on_worker_died(self, key: SliceKey, worker_id: int, death: Death) -> None:
        reason = death.story()
        self._report("worker_died", slice=key[1], worker=worker_id, reason=reason)
        self._offers.worker_died(worker_id)
        self._tell(WorkerDied(*key, death))
        self._executor.bury_workers(reason)
        held = self._held.get(key)
        if held is not None and death.is_own_fault:
            self._count_crash(key, held, reason)

    def _count_crash(self, key: SliceKey, held: _Held, reason: str) -> None:
        """A slice that ends its workers again and again goes: the node is for others as well."""
        part, now_ms = held.order.slice, asyncio.get_running_loop().time() * 1000
        if not self._quarantine.crashed(part.slice_id, now_ms, reason):
            return
        refusal = self._quarantine.refusal(part.slice_id, now_ms, part.name)
        if held.loaded is None or held.pool is None or refusal is None:
            return  # it is still loading: that fails by itself
        self._report("slice_quarantined", slice=part.name, reason=refusal.message)
        held.pool.give_up()
        self._tell_failed(held.order, refusal)
        self._unload(key, held)

    def lift(self) -> None:
        """Load slices again that were kept out for what they did to their workers."""
        self._report("quarantine_lifted", slices=self._quarantine.lift())


def _files_of(part: Slice) -> tuple[Artifact, ...]:
    """What of a slice is fetched: nothing, where a server has the model."""
    return () if is_foreign(part.backend) else part.artifacts
