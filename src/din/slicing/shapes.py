"""Types and shapes of every value, once as the model promises them and once at a typical size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    shape_inference,
)

from din.domain.tensor import is_symbol
from din.slicing.contrib import DOMAIN, any_shape, stand_ins
from din.slicing.elements import fixed_bytes, fixed_dims, is_free, tensor_bytes
from din.slicing.operators import OperatorGraph
from din.slicing.skeleton import WEIGHT_BYTES_KEPT

FIRST_SIZE_ASSUMED: Final = 1
NEXT_SIZE_ASSUMED: Final = 640
"""Sizes taken for free dims in estimates (never in a signature): one sample, a 640-pixel image."""

STORED_BYTES_SEEN: Final = 4 * WEIGHT_BYTES_KEPT
"""Of a stored tensor that inference is given with its content, name and all."""


@dataclass(frozen=True)
class Shapes:
    """Types by value name, and bytes for estimates."""

    types: Mapping[str, TypeProto]
    """What holds in a run. The shapes that a file declares of values inside it, and of outputs,
    are not believed: engines ignore wrong ones, but not as the input of a slice."""
    declared: Mapping[str, ValueInfoProto]
    """Values inside and outputs, as the file has them."""
    stored: Mapping[str, TensorProto]
    """Initialisers and values of Constants."""
    sparse: Mapping[str, SparseTensorProto]
    warnings: tuple[str, ...]
    graph: ModelProto
    """What types were inferred from."""

    @cached_property
    def typical(self) -> Mapping[str, TypeProto]:
        """Types at the assumed sizes of free dims."""
        graph = ModelProto()
        graph.CopyFrom(self.graph)
        return _infer(graph, []) if _make_typical(graph.graph.input) else self.types

    def nbytes(self, name: str) -> int | None:
        """Bytes of a value that is the same in every request, else None."""
        return fixed_bytes(self.types.get(name))

    def stored_bytes(self, name: str) -> int:
        """Bytes of a stored value, 0 for what is none."""
        if name in self.sparse:
            return tensor_bytes(self.sparse[name].values) + tensor_bytes(self.sparse[name].indices)
        return tensor_bytes(self.stored[name]) if name in self.stored else 0

    def estimate(self, name: str) -> int:
        """Bytes of a value, at typical sizes; 0 when nothing is known."""
        return (
            self.stored_bytes(name)
            or fixed_bytes(self.typical.get(name))
            or (fixed_bytes(self.declared[name].type) if name in self.declared else None)
            or 0
        )

    def dims_typical(self, name: str) -> tuple[int, ...] | None:
        """Dims of a value at typical sizes; None when one is not known."""
        if name in self.stored:
            return tuple(self.stored[name].dims)
        kind = self.typical.get(name)
        return None if kind is None else fixed_dims(kind)

    def promised(self, names: Iterable[str]) -> dict[str, TypeProto]:
        """Types of outputs for people: as declared where nothing could be inferred."""
        return {
            name: _completed(kind, self.declared[name].type) if name in self.declared else kind
            for name in names
            if (kind := self.types.get(name)) is not None
        }


def infer(model: ModelProto, ordered: OperatorGraph) -> Shapes:
    """Types of all values of the top graph. What inference does not know has the element type that
    the file declares, and any shape."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    thin = dict(sparse)
    nodes: list[NodeProto] = []
    for operator in ordered.operators:
        held, writes = operator.held, operator.writes
        if held.value is not None and writes:
            stored[writes[0]] = held.value
        elif held.tensors and writes and (found := _sparse_constant(operator.proto)) is not None:
            thin[writes[0]] = found
        else:
            nodes.append(operator.proto)
    skeleton = _skeleton(model, nodes, stored, thin)
    warnings: list[str] = []
    declared = {each.name: each for each in (*graph.value_info, *graph.output)}
    types = _infer(skeleton, warnings)
    for name in ordered.outputs:
        if name in stored:
            types[name] = _type_of(stored[name].data_type, stored[name].dims)
    for name, value in declared.items():
        if name not in types or not _is_typed(types[name]):
            types[name] = _without_shape(value.type)
    return Shapes(types, declared, stored, sparse, tuple(warnings), skeleton)


def _skeleton(
    model: ModelProto,
    nodes: list[NodeProto],
    stored: Mapping[str, TensorProto],
    sparse: Mapping[str, SparseTensorProto],
) -> ModelProto:
    """The model with its large weights replaced by inputs of the same type: same inference, less
    to copy."""
    skeleton = ModelProto()
    skeleton.ir_version = max(model.ir_version, 4)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name or "graph"
    graph.input.extend(model.graph.input)
    if any(node.domain == DOMAIN for node in nodes):
        nodes = list(stand_ins(nodes))
        graph.input.append(any_shape())
    graph.node.extend(nodes)
    # Inference stops short at an output that no node makes, or that it has seen before.
    given = {*stored, *sparse, *(value.name for value in model.graph.input)}
    outputs = {value.name: value for value in model.graph.output if value.name not in given}
    for name, value in outputs.items():
        graph.output.add(name=name, type=_without_shape(value.type))
    kept: dict[str, TensorProto] = {}
    for name, tensor in stored.items():
        if tensor.external_data or tensor.ByteSize() > STORED_BYTES_SEEN:
            _write_type(graph.input.add(name=name).type, tensor.data_type, tensor.dims)
        else:
            kept[name] = tensor
    graph.initializer.extend(kept.values())
    for name, tensor in zip(kept, graph.initializer, strict=True):
        tensor.name = name
    # Engines make sparse ones dense, whoever reads them; inference knows sparse tensors only.
    for name, thin in sparse.items():
        _write_type(graph.input.add(name=name).type, thin.values.data_type, thin.dims)
    return skeleton


def _sparse_constant(node: NodeProto) -> SparseTensorProto | None:
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        for attribute in node.attribute:
            if attribute.name == "sparse_value":
                return attribute.sparse_tensor
    return None


def _infer(model: ModelProto, warnings: list[str]) -> dict[str, TypeProto]:
    try:
        found = shape_inference.infer_shapes(model, data_prop=True).graph
    except MemoryError:
        raise
    except Exception as error:  # the library raises a dozen kinds, all of the same meaning here
        text = " ".join(str(error).split())[:200]
        warnings.append(f"shapes could not be inferred, only declared ones are known: {text}")
        found = GraphProto()
        found.CopyFrom(model.graph)
    types = {value.name: value.type for value in found.value_info}
    types.update({value.name: value.type for value in (*found.output, *found.input)})
    return types


def _is_typed(kind: TypeProto) -> bool:
    return kind.tensor_type.elem_type != 0 or kind.WhichOneof("value") not in (None, "tensor_type")


def _completed(kind: TypeProto, declared: TypeProto) -> TypeProto:
    """The inferred type with declared dims in place of unknown ones."""
    if {kind.WhichOneof("value"), declared.WhichOneof("value")} != {"tensor_type"}:
        return kind
    made = TypeProto()
    made.CopyFrom(kind)
    if not kind.tensor_type.HasField("shape"):
        if declared.tensor_type.HasField("shape"):
            made.tensor_type.shape.CopyFrom(declared.tensor_type.shape)
        return made
    dims, said = made.tensor_type.shape.dim, declared.tensor_type.shape.dim
    if len(dims) == len(said):
        for dim, other in zip(dims, said, strict=True):
            if is_free(dim) and not is_symbol(dim.dim_param):
                dim.CopyFrom(other)
    return made


def _without_shape(kind: TypeProto) -> TypeProto:
    made = TypeProto()
    made.CopyFrom(kind)
    if kind.WhichOneof("value") == "tensor_type":
        made.tensor_type.ClearField("shape")
    return made


def _type_of(elem_type: int, dims: Iterable[int]) -> TypeProto:
    kind = TypeProto()
    _write_type(kind, elem_type, dims)
    return kind


def _write_type(kind: TypeProto, elem_type: int, dims: Iterable[int]) -> None:
    kind.tensor_type.elem_type = elem_type
    shape = kind.tensor_type.shape
    shape.SetInParent()
    add = shape.dim.add
    for size in dims:
        add().dim_value = size


def _make_typical(inputs: Iterable[ValueInfoProto]) -> bool:
    """Give free dims the assumed sizes, in place; whether there were any."""
    found = False
    for value in inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if is_free(dim):
                dim.dim_value = NEXT_SIZE_ASSUMED if axis else FIRST_SIZE_ASSUMED
                found = True
    return found
