"""Runs a probe: places it, has it loaded, asks it once, unloads it. All by the machinery of models.

A probe is a deployment of one slice that is in no book of models. It is pinned to one node if that
is wanted, never moved to another, and never asked twice: what it does to a node it does once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

import msgspec
from msgspec import Struct

from din.domain.malformed import MALFORMED
from din.domain.model import GATEWAY, Artifact, Edge, ModelManifest, Partition, Slice
from din.domain.node import NodeId
from din.domain.probe import (
    ORDER_SPEC,
    ORDER_TENSOR,
    PROBE,
    REPORT_BYTES_MAX,
    REPORT_SPEC,
    REPORT_TENSOR,
    ProbeKind,
    ProbeOrder,
    ProbeReport,
)
from din.domain.tensor import TensorMeta, TensorSpec
from din.domain.trust import DEFAULT_TENANT
from din.domain.views import RegisterModel
from din.errors import (
    Busy,
    CannotPlace,
    DeadlineExceeded,
    ExecutionFailed,
    Unavailable,
    error_of_code,
)
from din.flow.timeout import Timeouts
from din.gateway.deployment.deployer import Deployer
from din.gateway.deployment.epochs import EpochBook
from din.gateway.registration.record import ModelRecord
from din.gateway.requests.request import Request
from din.gateway.requests.request_tools import RequestTools
from din.gateway.routes.serving import Serving
from din.gateway.service import Buffer, InferenceCall

RUNNING_MAX: Final = 2
"""Probes at once: each takes a whole model's memory and a worker's processor."""
WAITING_MAX: Final = 16
NAMESPACE: Final = "probe/"
"""Of the ids of their deployments: no model has a `/` in its id."""
_NOUNS: Final[dict[ProbeKind, str]] = {
    "profile": "profile",
    "verify": "verification",
    "calibrate": "calibration",
    "precision": "precision check",
}

_AGAIN: Final = "see `din node list`, and ask again"
_REPORT: Final = msgspec.json.Decoder(ProbeReport)


class ProbeJob(Struct, frozen=True, kw_only=True):
    """One probe to be run."""

    order: ProbeOrder
    subject: str
    """The model that it looks at."""
    artifacts: tuple[Artifact, ...]
    """Models in the order of the parts, and the weights of all."""
    backend_options: dict[str, str] = {}
    specs: tuple[TensorSpec, ...] = ()
    """Of the inputs that are given."""
    metas: tuple[TensorMeta, ...] = ()
    chunks: Sequence[Sequence[Buffer]] = ()
    memory_mib: int
    is_sensitive: bool = False
    labels: dict[str, str] = {}
    tenant: str = DEFAULT_TENANT

    @property
    def title(self) -> str:
        """What people read of it in events, logs and lists of slices."""
        return f"{_NOUNS[self.order.kind]} of {self.subject}"


class Probed(Struct, frozen=True):
    """A report, and who made it."""

    report: ProbeReport
    node_id: NodeId
    node: str


@dataclass(frozen=True)
class ProbeRooms:
    """What probes use of the gateway."""

    deployer: Deployer
    tools: RequestTools
    timeouts: Timeouts
    epochs: EpochBook
    random_bits: Callable[[int], int]


class Probes:
    """All probes of a gateway."""

    def __init__(self, rooms: ProbeRooms) -> None:
        self._rooms = rooms
        self._places = asyncio.Semaphore(RUNNING_MAX)
        self._waiting = 0
        self._numbers = count(1)

    async def load(self) -> None:
        """What an earlier session of this gateway had running is over: nodes are told so."""
        await self._rooms.epochs.end_all(NAMESPACE)

    async def run(self, job: ProbeJob, node_id: NodeId | None, timeout_ms: int) -> Probed:
        """One probe on one node, or on any. Raises CannotPlace, Busy, DeadlineExceeded,
        ExecutionFailed, Unavailable, or what the node says: BadModel, BadTensor, TooLarge."""
        deadline_ms = self._rooms.tools.clock() + timeout_ms
        async with self._place(timeout_ms), self._deployed(job, node_id) as serving:
            ready = await self._until_ready(serving, deadline_ms)
            try:
                report = await self._asked(job, serving, ready, deadline_ms)
            finally:
                slice_id = serving.deployment.partition.slices[0].slice_id
                self._rooms.timeouts.forget(slice_id, ready)
        return Probed(report, ready, self._rooms.tools.name_of(ready))

    @asynccontextmanager
    async def _place(self, timeout_ms: int) -> AsyncGenerator[None]:
        if self._waiting >= WAITING_MAX:
            raise Busy(
                f"{WAITING_MAX} probes wait already",
                hint="profiles and verifications run a few at a time: try again later",
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._places.acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                f"other probes took all of {timeout_ms / 1000:g} s", hint="try again later"
            ) from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()

    @asynccontextmanager
    async def _deployed(self, job: ProbeJob, node_id: NodeId | None) -> AsyncGenerator[Serving]:
        serving = await self._rooms.deployer.deploy(self._record(job, node_id))
        serving.is_kept = True
        try:
            yield serving
        finally:
            await self._rooms.deployer.retire(serving)

    def _record(self, job: ProbeJob, node_id: NodeId | None) -> ModelRecord:
        """As a version of a model would be, with one replica of one slice."""
        part = Slice(
            index=0,
            slice_id=f"{self._rooms.random_bits(256):064x}",
            name=job.title,
            artifacts=job.artifacts,
            inputs=(ORDER_SPEC, *job.specs),
            outputs=(REPORT_SPEC,),
            backend=PROBE,
            memory_mib=job.memory_mib,
            # It is never run a second time, whatever happens to the first.
            is_random=True,
            labels=job.labels,
            is_sensitive=job.is_sensitive,
            nodes=(node_id,) if node_id is not None else (),
        )
        edges = [Edge(spec.name, GATEWAY, (0,)) for spec in part.inputs]
        return ModelRecord(
            manifest=ModelManifest(
                model_id=f"{NAMESPACE}{job.title}",
                version=str(next(self._numbers)),
                source_sha256=part.slice_id,
                inputs=part.inputs,
                outputs=part.outputs,
                backend_options=job.backend_options,
                replicas_max=1,
                is_cut_by_din=True,  # it is not to be cut when no node can hold it
                tenant=job.tenant,
            ),
            partition=Partition(slices=(part,), edges=(*edges, Edge(REPORT_TENSOR, 0, (GATEWAY,)))),
            cuts=(),
            order=RegisterModel(model_id=job.title, source_sha256=part.slice_id),
            order_sha256="",
        )

    async def _until_ready(self, serving: Serving, deadline_ms: float) -> NodeId:
        """The node that has it loaded. Raises what stands in the way at once: who asks for a probe
        does not wait for better times."""
        holding = self._rooms.deployer.holding(serving)
        assert holding is not None, "it was deployed just now"
        while True:
            ready = next(iter(serving.replicas(0)), None)
            if ready is not None:
                return ready
            if (error := holding.latest_error()) is not None:
                raise error
            if serving.deployment.reason:
                code = holding.error_code or CannotPlace.code
                raise error_of_code(code, serving.deployment.reason, holding.hint)
            left_ms = deadline_ms - self._rooms.tools.clock()
            if left_ms <= 0:
                raise DeadlineExceeded(
                    "the probe was not loaded in time",
                    hint="give it more time with --timeout-ms, or free the node",
                )
            await serving.wait_for_change(left_ms / 1000)

    async def _asked(
        self, job: ProbeJob, serving: Serving, node_id: NodeId, deadline_ms: float
    ) -> ProbeReport:
        tools = self._rooms.tools
        now_ms = tools.clock()
        remaining_ms = max(int(deadline_ms - now_ms), 1)
        replica = serving.replicas(0).get(node_id)
        if replica is None:
            raise Unavailable(
                f"node {tools.name_of(node_id)} was lost before it was asked for the {job.title}",
                hint=_AGAIN,
            )
        # It may compute as long as it was given: silence until then blames nobody.
        replica.observe(remaining_ms, now_ms)
        order = msgspec.json.encode(job.order)
        call = InferenceCall(
            model_id=serving.deployment.manifest.model_id,
            metas=(TensorMeta(ORDER_TENSOR, "UINT8", (len(order),), len(order)), *job.metas),
            chunks=((order,), *job.chunks),
            is_adapted=False,
            timeout_ms=remaining_ms,
            tenant=job.tenant,
        )
        try:
            answer = await Request(tools, serving, call, now_ms).run()
        except Unavailable as error:
            if type(error) is not Unavailable:
                raise
            # Its hint is about a model that is registered.
            raise Unavailable(error.message, hint=_AGAIN) from error
        try:
            (view,) = answer.views
            if view.nbytes > REPORT_BYTES_MAX:
                raise ExecutionFailed(
                    f"the report has {view.nbytes} bytes, over {REPORT_BYTES_MAX}"
                )
            return _REPORT.decode(view)
        except (*MALFORMED, ValueError) as error:
            raise ExecutionFailed(
                f"the report of node {tools.name_of(node_id)} cannot be read: {error}",
                hint="compare the versions of DIN there and here: din node inspect",
            ) from None
        finally:
            answer.release()
