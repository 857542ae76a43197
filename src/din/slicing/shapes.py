"""Types and shapes of every value, once as the model promises them and once at a typical size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    shape_inference,
)

from din.domain.tensor import is_symbol
from din.slicing.contrib import DOMAIN, any_shape, stand_ins
from din.slicing.elements import fixed_bytes, tensor_bytes
from din.slicing.operators import OperatorGraph
from din.slicing.skeleton import WEIGHT_BYTES_KEPT
from din.slicing.weights import constant_elsewhere

FIRST_SIZE_ASSUMED: Final = 1
NEXT_SIZE_ASSUMED: Final = 640
"""Sizes taken for free dims in estimates (never in a signature): one sample, a 640-pixel image."""


@dataclass(frozen=True)
class Shapes:
    """Types by value name, and bytes for estimates."""

    types: dict[str, TypeProto]
    """What holds in a run. The shapes that a file declares of values inside it, and of outputs,
    are not believed: engines ignore wrong ones, but not as the input of a slice."""
    declared: dict[str, TypeProto]
    """Of values inside and outputs, as the file has them."""
    bytes_typical: dict[str, int]
    """At the assumed sizes of free dims; a value that stays unknown is missing."""
    dims_typical: dict[str, tuple[int, ...]]
    stored_bytes: dict[str, int]
    warnings: tuple[str, ...]

    def nbytes(self, name: str) -> int | None:
        """Bytes of a value that is the same in every request, else None."""
        return fixed_bytes(self.types.get(name))

    def estimate(self, name: str) -> int:
        """Bytes of a value, at typical sizes; 0 when nothing is known."""
        return self.stored_bytes.get(name) or self.bytes_typical.get(name, 0)

    def promised(self, names: Iterable[str]) -> dict[str, TypeProto]:
        """Types of outputs for people: as declared where nothing could be inferred."""
        return {
            name: _completed(kind, self.declared.get(name))
            for name in names
            if (kind := self.types.get(name)) is not None
        }


def infer(model: ModelProto, ordered: OperatorGraph) -> Shapes:
    """Types of all values of the top graph. What inference does not know has the element type that
    the file declares, and any shape."""
    skeleton = _skeleton(model, ordered)
    warnings: list[str] = []
    declared = {each.name: each.type for each in (*model.graph.value_info, *model.graph.output)}
    types = _infer(skeleton, warnings)
    for name, kind in declared.items():
        if name not in types or not _is_typed(types[name]):
            types[name] = _without_shape(kind)
    typical = skeleton
    if _has_free_dims(skeleton.graph):
        _make_typical(typical.graph)
        typical_types = _infer(typical, [])
    else:
        typical_types = types
    sizes = {name: fixed_bytes(kind) for name, kind in declared.items()}
    known = {name: fixed_bytes(kind) for name, kind in typical_types.items()}
    sizes.update({name: size for name, size in known.items() if size is not None})
    dims = {name: _dims(kind) for name, kind in typical_types.items()}
    stored = {tensor.name: tensor_bytes(tensor) for tensor in model.graph.initializer}
    for sparse in model.graph.sparse_initializer:
        stored[sparse.values.name] = tensor_bytes(sparse.values) + tensor_bytes(sparse.indices)
    return Shapes(
        types=types,
        declared=declared,
        bytes_typical={name: size for name, size in sizes.items() if size is not None},
        dims_typical={name: each for name, each in dims.items() if each is not None},
        stored_bytes=stored,
        warnings=tuple(warnings),
    )


def _skeleton(model: ModelProto, ordered: OperatorGraph) -> ModelProto:
    """The model with its large weights replaced by inputs of the same type: same inference, less
    to copy."""
    skeleton = ModelProto()
    skeleton.ir_version = max(model.ir_version, 4)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name or "graph"
    nodes: list[NodeProto] = []
    weights: dict[str, TensorProto] = {}
    # Engines make sparse ones dense, whoever reads them; inference knows sparse tensors only.
    sparse = {each.values.name: each for each in model.graph.sparse_initializer}
    for operator in ordered.operators:
        weight, thin = constant_elsewhere(operator.proto), _sparse_constant(operator.proto)
        if weight is not None and operator.writes:
            weights[operator.writes[0]] = weight
        elif thin is not None and operator.writes:
            sparse[operator.writes[0]] = thin
        else:
            nodes.append(operator.proto)
    graph.input.extend(model.graph.input)
    if any(node.domain == DOMAIN for node in nodes):
        nodes = list(stand_ins(nodes))
        graph.input.append(any_shape())
    graph.node.extend(nodes)
    # Inference stops short at an output that is an input, or that it has seen before.
    made = {value.name: value for value in model.graph.output if value.name in ordered.producer}
    for name, value in made.items():
        graph.output.add(name=name, type=_without_shape(value.type))
    for tensor in model.graph.initializer:
        if tensor_bytes(tensor) <= WEIGHT_BYTES_KEPT:
            graph.initializer.append(tensor)
        else:
            weights[tensor.name] = tensor
    for name, tensor in weights.items():
        graph.input.add(name=name, type=_type_of(tensor.data_type, tensor.dims))
    for name, thin in sparse.items():
        graph.input.add(name=name, type=_type_of(thin.values.data_type, thin.dims))
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
    for tensor in found.initializer:
        types[tensor.name] = _type_of(tensor.data_type, tensor.dims)
    return types


def _is_typed(kind: TypeProto) -> bool:
    which = kind.WhichOneof("value")
    return which is not None and (which != "tensor_type" or kind.tensor_type.elem_type != 0)


def _completed(kind: TypeProto, declared: TypeProto | None) -> TypeProto:
    """The inferred type with declared dims in place of unknown ones."""
    if declared is None or {kind.WhichOneof("value"), declared.WhichOneof("value")} != {
        "tensor_type"
    }:
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
            if _is_free(dim) and not is_symbol(dim.dim_param):
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
    kind.tensor_type.elem_type = elem_type
    kind.tensor_type.shape.SetInParent()
    for size in dims:
        kind.tensor_type.shape.dim.add().dim_value = size
    return kind


def _has_free_dims(graph: GraphProto) -> bool:
    return any(_is_free(dim) for value in graph.input for dim in value.type.tensor_type.shape.dim)


def _make_typical(graph: GraphProto) -> None:
    del graph.value_info[:]
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if _is_free(dim):
                dim.dim_value = NEXT_SIZE_ASSUMED if axis else FIRST_SIZE_ASSUMED
    for value in graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")


def _is_free(dim: TensorShapeProto.Dimension) -> bool:
    """Some exporters write -1 where others write a symbol or nothing."""
    return dim.WhichOneof("value") != "dim_value" or dim.dim_value < 0


def _dims(kind: TypeProto) -> tuple[int, ...] | None:
    if kind.WhichOneof("value") != "tensor_type" or not kind.tensor_type.HasField("shape"):
        return None
    if any(map(_is_free, kind.tensor_type.shape.dim)):
        return None
    return tuple(dim.dim_value for dim in kind.tensor_type.shape.dim)
