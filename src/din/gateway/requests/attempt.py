"""One try of one request: what it waits for, what it has heard, whom to blame when it falls silent.

The states of an attempt are few, and only one leaves it:

    waiting --result--> waiting | completed
    waiting --failed, busy, node down, silence, deadline, cancel--> ended

Blame follows the tensors. A slice whose inputs are all there (nothing upstream, or every producer
has FORWARDED or answered) but that has not ACCEPTED is blamed on the link to its node; one that has
ACCEPTED is blamed itself. Marks are batched and some are never sent, so whoever has its inputs
proves that everybody upstream has done its part. Knows no socket and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from din.domain.deployment import Route
from din.domain.node import NodeId
from din.domain.request import SliceTiming
from din.domain.tensor import TensorMeta, offsets_of
from din.gateway.routes.shape import RouteShape
from din.wire.messages import Progress, Result


class Attempt:
    """Book-keeping of one attempt over one route."""

    def __init__(
        self,
        request_id: int,
        number: int,
        route: Route,
        shape: RouteShape,
        outputs: Sequence[str],
        started_ms: float,
    ) -> None:
        self.request_id = request_id
        self.number = number
        self.route = route
        self.shape = shape
        self.started_ms = started_ms
        self.timings: dict[int, SliceTiming] = {}
        self.received: dict[str, tuple[TensorMeta, memoryview]] = {}
        self._wanted = tuple(outputs) or tuple(shape.outputs)
        self._missing = set(self._wanted)
        self._accepted: set[int] = set()
        self._forwarded: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """Every wanted output is here."""
        return not self._missing

    def name_of(self, slice_index: int) -> str:
        """How people call a slice; its number where a node names one that does not run."""
        return self.shape.names.get(slice_index, str(slice_index))

    def node_of(self, slice_index: int) -> NodeId:
        """The node that runs a slice in this attempt."""
        return self.route.nodes[slice_index]

    def uses(self, node_id: str) -> bool:
        """Whether this node has, or may still have, work of this attempt."""
        return bool(node_id) and node_id in self.route.nodes

    def expects(self, message: Result) -> bool:
        """Whether a result belongs to this attempt and holds what its slice may send."""
        return (
            message.attempt == self.number
            and message.slice_index in self.shape.upstream
            and all(
                self.shape.outputs.get(meta.name) == message.slice_index for meta in message.tensors
            )
        )

    def take(self, message: Result, body: memoryview) -> None:
        """Keep the tensors of a result that was expected."""
        offsets, _ = offsets_of(message.tensors)
        for meta, offset in zip(message.tensors, offsets, strict=True):
            self.received[meta.name] = (meta, body[offset : offset + meta.nbytes])
            self._missing.discard(meta.name)
        for timing in message.timings:
            if self._is_ours(timing):
                self.timings[timing.slice_index] = timing
        self._forwarded.add(message.slice_index)
        self._prove_upstream(message.slice_index)

    def mark(self, progress: Progress) -> None:
        """Keep a mark of progress; marks of other attempts are ignored."""
        if progress.attempt != self.number or progress.slice_index not in self.shape.upstream:
            return
        self._accepted.add(progress.slice_index)
        if progress.step == "forwarded":
            self._forwarded.add(progress.slice_index)
        self._prove_upstream(progress.slice_index)

    def outputs(self) -> tuple[tuple[TensorMeta, memoryview], ...]:
        """The wanted outputs as they were asked for, else in the order of the signature."""
        return tuple(self.received[name] for name in self._wanted)

    def suspects(self) -> tuple[tuple[int, NodeId, str], ...]:
        """(slice, node, why) of every slice that holds the attempt up now."""
        found: list[tuple[int, NodeId, str]] = []
        for index in self.shape.slices:
            if index in self._forwarded:
                continue
            if not self.shape.upstream[index] <= self._forwarded:
                continue
            why = (
                "accepted the inputs and fell silent"
                if index in self._accepted
                else "never confirmed its inputs"
            )
            found.append((index, self.node_of(index), why))
        if not found:
            why = "sent outputs that never arrived"
            late = sorted({self.shape.outputs[name] for name in self._missing})
            found = [(index, self.node_of(index), why) for index in late]
        return tuple(found)

    def _is_ours(self, timing: SliceTiming) -> bool:
        """Timings cross the wire: one of a slice or node that takes no part is worth nothing."""
        index = timing.slice_index
        return index in self.shape.upstream and timing.node_id == self.node_of(index)

    def _prove_upstream(self, slice_index: int) -> None:
        pending = [slice_index]
        while pending:
            fresh = self.shape.upstream[pending.pop()] - self._forwarded
            self._forwarded |= fresh
            pending.extend(fresh)
