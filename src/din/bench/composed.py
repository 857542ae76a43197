"""Slices of one model in one process: each is fed from its edges alone, as nodes feed it.

Takes any map operator -> slice, so that suites of cases can cut where no strategy would.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from onnx import ModelProto

from din.domain.model import GATEWAY, Edge
from din.errors import ExecutionFailed
from din.slicing.emission import emit
from din.slicing.parts import divide
from din.slicing.slicer import Analysed
from din.slicing.weights import fill_in

Values = dict[str, Any]
"""Arrays, and what else a model takes or gives, by name."""

LEVELS: Final = {"off": "ORT_DISABLE_ALL", "all": "ORT_ENABLE_ALL"}


class Composed:
    """One session for each slice of a map. Raises what `divide` raises."""

    def __init__(self, found: Analysed, slice_of: Mapping[int, int], level: str = "all") -> None:
        count = max(slice_of.values(), default=0) + 1
        self.parts, self.edges = divide(found.graph, found.shapes, slice_of, count)
        self._sessions = [
            engine(_whole(emit(found.model, found.graph, found.shapes, part), found), level)
            for part in self.parts
        ]
        self._consumers = _by_producer(self.edges)
        self.crossed: dict[tuple[str, int, int], Any] = {}
        """What went from slice to slice in the last run: by tensor, producer and consumer."""

    def run(self, feeds: Values) -> Values:
        """Outputs by name. Raises ExecutionFailed when the edges leave a slice without an input."""
        self.crossed = {}
        inboxes: dict[int, Values] = {part.index: {} for part in self.parts}
        inboxes[GATEWAY] = {}
        self._send(GATEWAY, feeds, inboxes)
        waiting = list(self.parts)
        while waiting:
            ready = [part for part in waiting if set(part.inputs) == set(inboxes[part.index])]
            if not ready:
                names = ", ".join(str(part.index) for part in waiting)
                raise ExecutionFailed(f"the edges never feed the slices {names}")
            for part in ready:
                waiting.remove(part)
                names = list(part.outputs)
                made = self._sessions[part.index].run(names, inboxes[part.index])
                self._send(part.index, dict(zip(names, made, strict=True)), inboxes)
        return inboxes[GATEWAY]

    def _send(self, producer: int, values: Values, inboxes: dict[int, Values]) -> None:
        for tensor, consumers in self._consumers.get(producer, ()):
            for consumer in consumers:
                inboxes[consumer][tensor] = values[tensor]
                if GATEWAY not in (producer, consumer):
                    self.crossed[tensor, producer, consumer] = values[tensor]


def _whole(model: ModelProto, found: Analysed) -> bytes:
    fill_in(model.graph, found.places, found.files)
    return model.SerializeToString()


def engine(data: bytes, level: str = "all") -> Any:
    """A session of one thread on the processor."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, LEVELS[level])
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _by_producer(edges: tuple[Edge, ...]) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
    found: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for edge in edges:
        found.setdefault(edge.producer, []).append((edge.tensor, edge.consumers))
    return found
