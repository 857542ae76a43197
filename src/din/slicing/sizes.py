"""Estimates of memory and work: what admission and the choice of cuts go by until it is measured.

Free dims count at the typical sizes of `shapes`. A value whose size stays unknown counts as
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from onnx import FunctionProto, ModelProto, NodeProto

from din.slicing.elements import tensor_bytes
from din.slicing.functions import FunctionKey, called_by, functions_of
from din.slicing.operators import Operator, OperatorGraph
from din.slicing.shapes import Shapes
from din.slicing.source import Held, held_within, tensors_of, unfolded


@dataclass(frozen=True)
class Sizes:
    """Bytes and FLOPs of the operators of one graph."""

    graph: OperatorGraph
    shapes: Shapes
    functions: dict[FunctionKey, FunctionProto]

    def stored(self, name: str) -> int:
        """Bytes of an initialiser."""
        return self.shapes.stored_bytes(name)

    def held(self, index: int) -> int:
        """Bytes that an operator itself brings: what a constant makes, what subgraphs store."""
        operator = self.graph.operators[index]
        inner = _stored_bytes(unfolded(operator.held))
        function = self.functions.get(called_by(operator.proto))
        if function is not None:
            inner += _stored_bytes(held_within(function.node))
        if not operator.is_constant:
            return inner
        return max(inner, sum(self.shapes.estimate(name) for name in operator.writes))

    def weights(self, makers: set[int], stored: set[str], dynamic: list[Operator]) -> int:
        """Bytes of weights of a slice made of these constants, initialisers and operators."""
        fixed = sum(self.held(index) for index in makers)
        own = sum(self.held(each.index) for each in dynamic)
        return fixed + own + sum(self.stored(name) for name in stored)

    @cached_property
    def live_bytes(self) -> dict[int, int]:
        """By dynamic operator: bytes of all values alive while it runs."""
        last: dict[str, int] = {}
        for each in self.graph.dynamic:
            last.update(dict.fromkeys((*each.reads, *each.writes), each.index))
        nbytes = {name: self.shapes.estimate(name) for name in last.keys() - self.graph.fixed}
        alive = sum(nbytes.get(name, 0) for name in self.graph.inputs)
        found: dict[int, int] = {}
        for each in self.graph.dynamic:
            alive += sum(nbytes[name] for name in each.writes)
            found[each.index] = alive
            for name in {*each.reads, *each.writes} & nbytes.keys():
                if last[name] == each.index:
                    alive -= nbytes[name]
        return found

    def peak(self, dynamic: list[Operator]) -> int:
        """Peak of live bytes over these operators."""
        return max((self.live_bytes[each.index] for each in dynamic), default=0)

    def flops(self, operator: Operator) -> int:
        """Floating-point operations at typical sizes: exact for products, one per element else."""
        node = operator.proto
        made = sum(prod(self._known(name, (0,))) for name in operator.writes)
        match node.op_type:
            case "Conv" | "ConvInteger" | "QLinearConv":
                weights = self._dims(node, 3 if node.op_type == "QLinearConv" else 1)
                return 2 * made * prod(weights[1:]) if weights else made
            case "ConvTranspose":
                weights, given = self._dims(node, 1), self._dims(node, 0)
                return 2 * prod(given) * prod(weights[1:]) if weights and given else made
            case "MatMul" | "MatMulInteger" | "QLinearMatMul":
                given = self._dims(node, 0)
                return 2 * made * given[-1] if given else made
            case "Gemm":
                given = self._dims(node, 0)
                is_turned = any(each.name == "transA" and each.i for each in node.attribute)
                return 2 * made * given[0 if is_turned else -1] if given else made
            case _:
                return made

    def _dims(self, node: NodeProto, place: int) -> tuple[int, ...]:
        return self._known(node.input[place], ()) if place < len(node.input) else ()

    def _known(self, name: str, otherwise: tuple[int, ...]) -> tuple[int, ...]:
        dims = self.shapes.dims_typical(name)
        return otherwise if dims is None else dims


def _stored_bytes(nodes: Iterable[Held]) -> int:
    return sum(map(tensor_bytes, tensors_of(nodes)))


def sizes_of(model: ModelProto, graph: OperatorGraph, shapes: Shapes) -> Sizes:
    """Estimates for one model."""
    return Sizes(graph, shapes, functions_of(model))
