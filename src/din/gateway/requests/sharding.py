"""A large batch over several replicas: rows go apart, are answered as requests, come together.

Each shard is a request of its own with the deadline of the whole, so a shard that fails is tried
again as any request is. That rows do not look at each other is tried out once per deployment, with
two rows of the first batch, together and apart; a model in which they do is answered whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from din.domain.deployment import Epoch
from din.domain.model import Tiles
from din.domain.node import NodeId
from din.domain.tensor import TensorMeta
from din.errors import BadTensor, DinError, ExecutionFailed
from din.gateway.registration.tiles import shards_of
from din.gateway.routes.serving import Serving
from din.gateway.service import Buffer, InferenceAnswer, InferenceCall
from din.gateway.telemetry.traces import TraceBook

RunOne = Callable[[InferenceCall], Awaitable[InferenceAnswer]]
Report = Callable[..., None]
Rows = tuple[int, int]

TRIED_MAX: Final = 4_096
"""Deployments whose trial is remembered; the oldest is tried again."""
_KINDS: Final[dict[str, type[np.generic]]] = {
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
_TOLERANCES: Final[dict[str, tuple[float, float]]] = {"FP16": (1e-2, 1e-3)}
"""Relative and absolute: engines may sum in another order for another batch."""
_TOLERANCE: Final = (1e-3, 1e-5)


class Sharding:
    """Splits requests of models that were registered for it. One per gateway."""

    def __init__(
        self,
        traces: TraceBook,
        clock: Callable[[], float],
        random: Random,
        report: Report,
        capacity_of: Callable[[NodeId], int],
    ) -> None:
        """`capacity_of` is the share of its speed that a node has now, in percent."""
        self._traces = traces
        self._capacity_of = capacity_of
        self._clock = clock
        self._random = random
        self._report = report
        self._are_apart: dict[Epoch, bool] = {}
        self._trial = asyncio.Lock()

    def shards(self, serving: Serving, call: InferenceCall) -> list[Rows]:
        """Ranges of rows of a request; fewer than two when it is not split. Raises TooLarge."""
        tiles = serving.deployment.manifest.tiles
        if tiles is None or call.is_adapted:
            return []
        if self._are_apart.get(serving.deployment.epoch) is False:
            return []
        return shards_of(_rows_of(call, tiles), tiles, self._capacity_percent(serving))

    def _capacity_percent(self, serving: Serving) -> int:
        """Of the slowest node that may get a shard: nobody knows yet which one gets it."""
        count = len(serving.deployment.partition.slices)
        nodes = {node for index in range(count) for node in serving.replicas(index)}
        return min((self._capacity_of(node) for node in nodes), default=100)

    async def run(
        self, serving: Serving, call: InferenceCall, shards: list[Rows], run: RunOne
    ) -> InferenceAnswer:
        """One answer of all shards. Raises what a shard raises, naming its rows."""
        tiles = serving.deployment.manifest.tiles
        assert tiles is not None, "only such models have shards"
        public_id = call.request_id or f"req-{self._random.getrandbits(32):08x}"
        call = replace(call, request_id=public_id)
        started_ms = self._clock()
        if not await self._is_proven(serving, call, tiles, run):
            return await run(call)
        joined = _Joined(shards[-1][1])
        parts = [_part(call, tiles, each) for each in shards]

        async def one(part: InferenceCall, rows: Rows) -> InferenceAnswer:
            try:
                answer = await run(part)
            except DinError as error:
                words = f"rows {rows[0]} to {rows[1] - 1}: {error.message}"
                raise type(error)(words, hint=error.hint) from None
            try:
                joined.take(answer, rows)
            finally:
                answer.release()
            return answer

        status, error = "cancelled", ""
        try:
            answers = await _all([one(*each) for each in zip(parts, shards, strict=True)])
            status = "completed"
        except DinError as fault:
            status = "failed"
            error = f"{fault.code}: {fault.message}"
            raise
        finally:
            labels = {_id_of(call, each): f"[{each[0]}:{each[1]}]" for each in shards}
            steps = self._traces.join(
                public_id, labels, call.tenant, self._clock() - started_ms, status, error
            )
        return replace(
            answers[0],
            request_id=public_id,
            metas=joined.metas(),
            views=joined.views(),
            steps=steps,
            release=_nothing,
        )

    async def _is_proven(
        self, serving: Serving, call: InferenceCall, tiles: Tiles, run: RunOne
    ) -> bool:
        """Whether two rows answer the same together and apart; tried once."""
        epoch = serving.deployment.epoch
        async with self._trial:
            known = self._are_apart.get(epoch)
            if known is None:
                known = await self._try(serving, call, tiles, run)
                if len(self._are_apart) >= TRIED_MAX:
                    del self._are_apart[next(iter(self._are_apart))]
                self._are_apart[epoch] = known
        return known

    async def _try(self, serving: Serving, call: InferenceCall, tiles: Tiles, run: RunOne) -> bool:
        together, apart = _Joined(2), _Joined(2)
        ranges: tuple[tuple[Rows, _Joined], ...] = (
            ((0, 2), together),
            ((0, 1), apart),
            ((1, 2), apart),
        )
        for rows, joined in ranges:
            part = _part(call, tiles, rows)
            answer = await run(part)
            self._traces.forget(part.request_id or "", call.tenant)
            try:
                joined.take(answer, rows)
            except ExecutionFailed as error:
                return self._mixed(serving, error.message)
            finally:
                answer.release()
        for meta, one, other in zip(together.metas(), together.views(), apart.views(), strict=True):
            if not _are_near(meta.dtype, one, other):
                return self._mixed(serving, f"output {meta.name!r} of two rows differs when apart")
        return True

    def _mixed(self, serving: Serving, what: str) -> bool:
        model_id = serving.deployment.manifest.model_id
        self._report("rows are not apart, batches are answered whole", model=model_id, cause=what)
        return False


class _Joined:
    """Outputs of all rows, filled shard by shard."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._found: list[tuple[TensorMeta, bytearray]] = []

    def take(self, answer: InferenceAnswer, rows: Rows) -> None:
        """Copy what a shard answered. Raises ExecutionFailed for another number of rows than it was
        asked, or sizes that differ from shard to shard."""
        start, end = rows
        for index, (meta, view) in enumerate(zip(answer.metas, answer.views, strict=True)):
            if not meta.shape or meta.shape[0] != end - start:
                raise ExecutionFailed(
                    f"output {meta.name!r} has shape {list(meta.shape)} for {end - start} rows",
                    hint="its rows are not the rows of the input: use another strategy",
                )
            row_bytes = meta.nbytes // (end - start)
            shape = (self._rows, *meta.shape[1:])
            if index == len(self._found):
                whole = TensorMeta(meta.name, meta.dtype, shape, row_bytes * self._rows)
                self._found.append((whole, bytearray(whole.nbytes)))
            known, buffer = self._found[index]
            if known.shape != shape:
                raise ExecutionFailed(
                    f"output {meta.name!r} has rows of {list(meta.shape[1:])} in one shard and "
                    f"{list(known.shape[1:])} in another",
                    hint="sizes that depend on the data cannot be put together",
                )
            buffer[start * row_bytes : end * row_bytes] = view

    def metas(self) -> tuple[TensorMeta, ...]:
        """Of the whole outputs."""
        return tuple(meta for meta, _ in self._found)

    def views(self) -> list[memoryview]:
        """Their bytes."""
        return [memoryview(buffer) for _, buffer in self._found]


async def _all(work: Sequence[Awaitable[InferenceAnswer]]) -> list[InferenceAnswer]:
    """All results in order; the first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _rows_of(call: InferenceCall, tiles: Tiles) -> int:
    found = {meta.shape[0] for meta in call.metas if meta.name in tiles.split and meta.shape}
    if len(found) > 1:
        raise BadTensor(
            f"the inputs {', '.join(tiles.split)} have {sorted(found)} rows",
            hint="give each the same number of rows",
        )
    return next(iter(found), 0)


def _part(call: InferenceCall, tiles: Tiles, rows: Rows) -> InferenceCall:
    """The request for some rows; inputs without rows go to every shard."""
    start, end = rows
    metas: list[TensorMeta] = []
    chunks: list[Sequence[Buffer]] = []
    for meta, pieces in zip(call.metas, call.chunks, strict=True):
        if meta.name not in tiles.split:
            metas.append(meta)
            chunks.append(pieces)
            continue
        row_bytes = meta.nbytes // meta.shape[0]
        shape = (end - start, *meta.shape[1:])
        metas.append(TensorMeta(meta.name, meta.dtype, shape, row_bytes * (end - start)))
        chunks.append(_cut(pieces, start * row_bytes, end * row_bytes))
    return replace(call, metas=tuple(metas), chunks=chunks, request_id=_id_of(call, rows))


def _cut(pieces: Sequence[Buffer], start: int, end: int) -> list[Buffer]:
    """Bytes start..end of what lies in pieces, without a copy."""
    found: list[Buffer] = []
    for piece in pieces:
        view = memoryview(piece).cast("B")
        if start < len(view) and end > 0:
            found.append(view[max(start, 0) : end])
        start -= len(view)
        end -= len(view)
    return found


def _id_of(call: InferenceCall, rows: Rows) -> str:
    return f"{call.request_id}[{rows[0]}:{rows[1]}]"


def _are_near(dtype: str, one: memoryview, other: memoryview) -> bool:
    kind = _KINDS.get(dtype)
    if kind is None:
        return one == other
    relative, absolute = _TOLERANCES.get(dtype, _TOLERANCE)
    first: npt.NDArray[np.generic] = np.frombuffer(one, kind)
    second: npt.NDArray[np.generic] = np.frombuffer(other, kind)
    return bool(np.allclose(first, second, rtol=relative, atol=absolute, equal_nan=True))


def _nothing() -> None:
    """The outputs are the answer's own."""
