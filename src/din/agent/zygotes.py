"""One zygote per engine: an engine that no slice of this node uses is in no memory.

The main one has what every node needs: ONNX Runtime, adapters, probes. Another is started with the
first slice of its engine, and ends a while after its last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from din.agent.zygote import OnExit, Report, WorkerProcess, Zygote
from din.backends.registry import BACKENDS
from din.domain.crash import Death
from din.domain.foreign import is_foreign
from din.domain.probe import PROBE, probed_engines
from din.domain.support import ONNXRUNTIME
from din.errors import UsageError
from din.wire.worker import Fork

LINGER_S: Final = 60.0
"""A zygote without workers stays so long: a slice that was moved often comes back."""
ENGINES_AT_ONCE_MAX: Final = 8


class _Further:
    """A zygote beside the main one, and how many use it."""

    def __init__(self, zygote: Zygote) -> None:
        self.zygote = zygote
        self.users = 0
        self.ending: asyncio.TimerHandle | None = None


class Zygotes:
    """All zygotes of this agent. All calls in the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Report,
        *,
        is_insecure: bool = False,
        linger_s: float = LINGER_S,
    ) -> None:
        """`is_insecure`: workers may run where nothing confines them."""
        self._loop = loop
        self._report = report
        self._is_insecure = is_insecure
        self._linger_s = linger_s
        self._main = Zygote(loop, report, is_insecure=is_insecure)
        self._further: dict[tuple[str, ...], _Further] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._last_worker_id = 0

    @property
    def pid(self) -> int | None:
        """Of the main one, when it runs."""
        return self._main.pid

    def pid_of(self, engine: str) -> int | None:
        """Of the zygote that holds this engine's workers, when it runs."""
        found = self._further.get((f"--engine={engine}",))
        return found.zygote.pid if found is not None else None

    def next_worker_id(self) -> int:
        """A number that no worker of this agent session had, in whichever zygote."""
        self._last_worker_id += 1
        return self._last_worker_id

    async def start(self) -> None:
        """Start the main one unless it runs. Raises Unavailable."""
        await self._main.start()

    async def fork(self, order: Fork, descriptors: Sequence[int], on_exit: OnExit) -> WorkerProcess:
        """A new worker of the zygote that has what the order needs; see `Zygote.fork`. Raises
        UsageError for a backend that DIN does not know."""
        words = words_for(order)
        if not words:
            return await self._main.fork(order, descriptors, on_exit)
        further = self._further_of(words)
        further.users += 1

        def left(death: Death) -> None:
            self._left(words, further)
            on_exit(death)

        try:
            return await further.zygote.fork(order, descriptors, left)
        except BaseException:
            self._left(words, further)
            raise

    async def stop(self) -> None:
        """End all of them and with them every worker that is left."""
        further = list(self._further.values())
        self._further.clear()
        for each in further:
            if each.ending is not None:
                each.ending.cancel()
        await asyncio.gather(
            self._main.stop(), *(each.zygote.stop() for each in further), *self._ending
        )

    def _further_of(self, words: tuple[str, ...]) -> _Further:
        found = self._further.get(words)
        if found is None:
            if len(self._further) >= ENGINES_AT_ONCE_MAX:
                raise UsageError(
                    f"{ENGINES_AT_ONCE_MAX} engines are in memory already",
                    hint="unload models that use other engines from this node",
                )
            zygote = Zygote(self._loop, self._report, is_insecure=self._is_insecure, words=words)
            found = self._further[words] = _Further(zygote)
        if found.ending is not None:
            found.ending.cancel()
            found.ending = None
        return found

    def _left(self, words: tuple[str, ...], further: _Further) -> None:
        further.users -= 1
        if further.users == 0 and self._further.get(words) is further:
            further.ending = self._loop.call_later(self._linger_s, self._end, words, further)

    def _end(self, words: tuple[str, ...], further: _Further) -> None:
        if self._further.get(words) is not further or further.users:
            return
        del self._further[words]
        ending = self._loop.create_task(further.zygote.stop())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def words_for(order: Fork) -> tuple[str, ...]:
    """What a zygote is told to have this order's engines; nothing = the main one has them. Raises
    UsageError."""
    if order.adapter is not None or order.backend == ONNXRUNTIME:
        return ()
    if is_foreign(order.backend):
        return ("--foreign",)
    is_probe = order.backend == PROBE
    engines = probed_engines(order.backend_options) if is_probe else (order.backend,)
    for name in engines:
        if name not in BACKENDS:
            raise UsageError(
                f"no backend is called {name!r}", hint=f"known backends: {', '.join(BACKENDS)}"
            )
    words = tuple(f"--engine={name}" for name in engines)
    return (*words, "--probe") if is_probe and words else words
