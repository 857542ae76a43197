"""Puts encodings at the cuts: nodes that encode behind the producer, nodes that decode before the
consumers. An encoded tensor is an edge of its own name, so that nothing else knows of it.

NaN and infinity keep their meaning in FP16, where magnitudes over 65504 become infinite. UINT8
saturates at the ends of its range and has no NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from onnx import ModelProto, NodeProto, TensorProto, TypeProto

from din.domain.encoding import (
    CHANNELS_MAX,
    DTYPES,
    ENCODINGS_MAX,
    Encoding,
)
from din.domain.model import GATEWAY, Edge
from din.errors import BadStrategy
from din.slicing.coders import Coder, inner_names
from din.slicing.cutting import splits_quantised
from din.slicing.elements import fixed_bytes, shape_of, word_of
from din.slicing.needs import Added
from din.slicing.operators import OperatorGraph
from din.slicing.parts import Part
from din.slicing.shapes import Shapes
from din.slicing.source import nodes_within

OPSET_CAST: Final = 7
"""The first whose Add and Div broadcast, and whose Cast names its target by a number."""

_ELEMENTS = {"FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "UINT8": TensorProto.UINT8}


@dataclass(frozen=True)
class Coded:
    """A partition whose edges carry what is encoded."""

    parts: tuple[Part, ...]
    edges: tuple[Edge, ...]
    shapes: Shapes
    """With the types of what is encoded."""
    names: Mapping[str, str]
    """Tensor -> the encoded one."""
    encodings: Mapping[str, Encoding]
    opset: int

    def exact_name(self, name: str) -> str:
        """The tensor that an edge carries, by its own name."""
        return next((raw for raw, made in self.names.items() if made == name), name)

    def write(self, model: ModelProto, part: Part) -> None:
        """Append to an emitted part what encodes its outputs and decodes its inputs, in place."""
        first = 0
        for coder, is_made in self._coders(part):
            model.graph.initializer.extend(coder.stored())
            if is_made:
                model.graph.node.extend(coder.encoders())
                continue
            for node in coder.decoders():
                model.graph.node.insert(first, node)
                first += 1

    def added(self, part: Part) -> Added:
        """What `write` adds: a backend has to run it as well."""
        nodes: list[NodeProto] = []
        stored: list[TensorProto] = []
        for coder, is_made in self._coders(part):
            nodes += coder.encoders() if is_made else coder.decoders()
            stored += coder.stored()
        return Added(nodes, stored)

    def _coders(self, part: Part) -> Iterator[tuple[Coder, bool]]:
        """Of what a part makes (True) and takes (False) encoded."""
        taken, given = set(part.inputs), set(part.outputs)
        for raw, made in self.names.items():
            if made in given or made in taken:
                yield self._coder(raw, made), made in given

    def _coder(self, raw: str, made: str) -> Coder:
        kind = self.shapes.types[raw]
        is_half = word_of(kind) == "FP16"
        return Coder(raw, made, self.encodings[raw], is_half, self.opset, len(shape_of(kind) or ()))


def exact_reason(graph: OperatorGraph, shapes: Shapes, name: str, opset: int) -> str:
    """Why no encoding may be put on a tensor that crosses; "" when any may."""
    kind = shapes.types.get(name)
    word = word_of(kind)
    if word not in ("FP32", "FP16"):
        return f"it is {word or 'no tensor'}, and only floating-point tensors are encoded"
    if splits_quantised(graph, name):
        return "it ties an operator to its QuantizeLinear or DequantizeLinear"
    if opset < OPSET_CAST:
        return f"opset {opset} is too old for encodings, they take {OPSET_CAST}"
    return ""


def encode(
    model: ModelProto,
    graph: OperatorGraph,
    shapes: Shapes,
    parts: tuple[Part, ...],
    edges: tuple[Edge, ...],
    encodings: Mapping[str, Encoding],
    opset: int,
) -> Coded:
    """Give every encoded tensor an edge of its own. Raises BadStrategy for an encoding that its
    tensor, or the model's operator set, cannot have."""
    if len(encodings) > ENCODINGS_MAX:
        raise BadStrategy(
            f"{len(encodings)} tensors are to be encoded; the limit is {ENCODINGS_MAX}",
            hint="cut into fewer slices",
        )
    crossing = {edge.tensor: edge for edge in edges if edge.producer != GATEWAY}
    for name, encoding in encodings.items():
        edge = crossing.get(name)
        if edge is None or set(edge.consumers) <= {GATEWAY}:
            raise BadStrategy(
                f"an encoding is given for {name!r}, which does not cross between slices",
                hint="only what one slice makes and another reads is encoded",
            )
        _check(graph, shapes, name, encoding, opset)
    names = _names(model, edges, encodings) if encodings else {}
    types = dict(shapes.types)
    for raw, made in names.items():
        types[made] = _type(shapes.types[raw], DTYPES[encodings[raw].kind])
    plain = {name for name, edge in crossing.items() if GATEWAY in edge.consumers}
    return Coded(
        parts=tuple(_part(part, names, plain) for part in parts),
        edges=tuple(made for edge in edges for made in _split(edge, names)),
        shapes=replace(shapes, types=types),
        names=names,
        encodings=encodings,
        opset=opset,
    )


def exact_bytes(coded: Coded, tensors: Iterable[str]) -> int | None:
    """Bytes that these edges would carry without encodings; None when one is not known."""
    sizes = [fixed_bytes(coded.shapes.types.get(coded.exact_name(name))) for name in tensors]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _check(graph: OperatorGraph, shapes: Shapes, name: str, encoding: Encoding, opset: int) -> None:
    reason = exact_reason(graph, shapes, name, opset)
    if not reason and encoding.kind == "fp16" and word_of(shapes.types[name]) == "FP16":
        reason = "it is FP16 already"
    if not reason and encoding.kind == "uint8":
        reason = _quantising_fault(shape_of(shapes.types[name]), encoding)
    if reason:
        raise BadStrategy(
            f"{name!r} cannot cross as {encoding.kind}: {reason}",
            hint="let it cross exactly: leave its encoding out",
        )


def _quantising_fault(shape: tuple[int | str | None, ...] | None, encoding: Encoding) -> str:
    count, axis = len(encoding.scale), encoding.axis
    if count != len(encoding.zero_point) or not count:
        return f"it has {count} scales and {len(encoding.zero_point)} zero points"
    if not all(isfinite(each) and each > 0 for each in encoding.scale):
        return "a scale is no positive number"
    if not all(0 <= each <= 255 for each in encoding.zero_point):
        return "a zero point is outside 0..255"
    if axis is None:
        return "" if count == 1 else f"{count} scales are given without an axis"
    if shape is None or not 0 <= axis < len(shape):
        return f"its rank is unknown or too small for axis {axis}"
    if shape[axis] != count or count > CHANNELS_MAX:
        return f"axis {axis} has {shape[axis]} channels, and {count} scales are given"
    return ""


def _names(
    model: ModelProto, edges: Iterable[Edge], encodings: Mapping[str, Encoding]
) -> dict[str, str]:
    """A name of its own for each encoded tensor: nothing in the model is called so."""
    used = {edge.tensor for edge in edges}
    used.update(each.name for each in (*model.graph.input, *model.graph.initializer))
    for node in nodes_within(model.graph.node):
        used.update((*node.input, *node.output))
    names: dict[str, str] = {}
    for raw in sorted(encodings):
        made = f"{raw}.{encodings[raw].kind}"
        while used & {made, *inner_names(made)}:
            made += "_"
        used |= {made, *inner_names(made)}
        names[raw] = made
    return names


def _type(raw: TypeProto, word: str) -> TypeProto:
    kind = TypeProto()
    kind.CopyFrom(raw)
    kind.tensor_type.elem_type = _ELEMENTS[word]
    return kind


def _part(part: Part, names: Mapping[str, str], plain: set[str]) -> Part:
    outputs = [name for name in part.outputs if name not in names or name in plain]
    outputs += [names[name] for name in part.outputs if name in names]
    return replace(
        part,
        inputs=tuple(names.get(name, name) for name in part.inputs),
        outputs=tuple(outputs),
    )


def _split(edge: Edge, names: Mapping[str, str]) -> list[Edge]:
    """Slices get the encoded tensor, the gateway the plain one."""
    if edge.tensor not in names:
        return [edge]
    slices = tuple(each for each in edge.consumers if each != GATEWAY)
    encoded = Edge(names[edge.tensor], edge.producer, slices)
    outer = [Edge(edge.tensor, edge.producer, (GATEWAY,))] if GATEWAY in edge.consumers else []
    return [*outer, encoded]
