"""Reads a model's bytes into a graph that the other modules may trust in its outer form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from din.errors import BadModel, BadStrategy, TooLarge
from din.slicing.nearest import nearest

NODES_MAX: Final = 20_000
"""Of the graph, its subgraphs and its functions together."""

DIM_MAX: Final = 2**31 - 1

# Most attributes are numbers, and graphs are walked often. What is not of an attribute's type is
# read by no engine; before types were written down, they were all 0.
_PLAIN: Final = frozenset(
    {
        AttributeProto.FLOAT,
        AttributeProto.INT,
        AttributeProto.STRING,
        AttributeProto.FLOATS,
        AttributeProto.INTS,
        AttributeProto.STRINGS,
    }
)
_WITHOUT_GRAPH: Final = _PLAIN | {AttributeProto.TENSOR, AttributeProto.TENSORS}


def read_model(data: bytes) -> ModelProto:
    """Parse a skeleton and check the outer form. Raises BadModel or TooLarge."""
    if not data:
        raise BadModel("the file is empty", hint="export or copy the model again")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise BadModel(
            f"the file is not ONNX or is truncated ({len(data)} bytes; {error})",
            hint="compare its size and SHA256 with the original; DIN reads .onnx files only",
        ) from None
    _check_outer_form(model)
    return model


def _check_outer_form(model: ModelProto) -> None:
    if not model.HasField("graph") or not model.graph.node:
        raise BadModel(
            "the file holds no ONNX graph with operators",
            hint="DIN reads .onnx files; convert other formats with their exporter first",
        )
    if model.ir_version < 1 or not (model.opset_import or model.ir_version < 3):
        raise BadModel(
            f"the model has ir_version {model.ir_version} and "
            f"{len(model.opset_import)} operator sets; it needs both",
            hint="export the model again with a current exporter",
        )
    if not model.graph.output:
        raise BadModel("the graph has no outputs", hint="export the model again with outputs")
    count = sum(1 for _ in every_node(model))
    if count > NODES_MAX:
        raise TooLarge(
            f"the graph has {count} operators, more than {NODES_MAX}",
            hint="simplify or split the model before registering it",
        )
    for tensor in every_tensor(model):
        if any(size < 0 for size in tensor.dims):
            raise BadModel(
                f"the stored tensor {tensor.name!r} has shape {list(tensor.dims)}",
                hint="sizes are 0 or more; export the model again",
            )


def subgraphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """Graphs in a node's attributes: the branches of If, the bodies of Loop and Scan."""
    for attribute in node.attribute:
        if attribute.type in _WITHOUT_GRAPH:
            continue
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nodes_within(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """These nodes and all nodes of their subgraphs, however deep."""
    for node in nodes:
        yield node
        for graph in subgraphs_of(node):
            yield from nodes_within(graph.node)


def every_node(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes of the graph, its subgraphs and the local functions."""
    yield from nodes_within(model.graph.node)
    for function in model.functions:
        yield from nodes_within(function.node)


def tensors_of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Tensors stored in attributes and in subgraphs of these nodes."""
    for node in nodes_within(nodes):
        for attribute in node.attribute:
            if attribute.type in _PLAIN:
                continue
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.type == AttributeProto.TENSOR:
                continue
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
        for graph in subgraphs_of(node):
            yield from graph.initializer


def every_tensor(model: ModelProto) -> Iterator[TensorProto]:
    """All stored tensors of a model."""
    yield from model.graph.initializer
    for sparse in model.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from tensors_of_nodes(model.graph.node)
    for function in model.functions:
        yield from tensors_of_nodes(function.node)


def stored_names(graph: GraphProto) -> set[str]:
    """Names of the tensors stored in a graph, dense and sparse."""
    names = {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def settle_inputs(model: ModelProto) -> int:
    """Take initialisers out of the graph inputs, in place; how many were taken out."""
    stored = stored_names(model.graph)
    kept = [value for value in model.graph.input if value.name not in stored]
    taken = len(model.graph.input) - len(kept)
    if taken:
        del model.graph.input[:]
        model.graph.input.extend(kept)
    return taken


def override_shapes(model: ModelProto, shapes: Mapping[str, tuple[int | str, ...]]) -> None:
    """Give graph inputs other shapes, in place; what was said of later shapes is dropped.

    Raises BadStrategy for an unknown input, another rank or a size out of bounds.
    """
    inputs = {value.name: value for value in model.graph.input}
    for name, shape in shapes.items():
        value = inputs.get(name)
        if value is None:
            raise BadStrategy(
                f"inputs names {name!r}, which is no input of the model",
                hint=f"the inputs are {nearest(name, inputs)}",
            )
        _override(value, shape)
    if shapes:
        # What the file says of later shapes was true of the old input; inference finds them anew.
        del model.graph.value_info[:]
        for output in model.graph.output:
            if output.type.WhichOneof("value") == "tensor_type":
                output.type.tensor_type.ClearField("shape")


def _override(value: ValueInfoProto, shape: tuple[int | str, ...]) -> None:
    if value.type.WhichOneof("value") != "tensor_type":
        raise BadStrategy(
            f"input {value.name!r} is no tensor and has no shape",
            hint="leave it out of inputs",
        )
    tensor = value.type.tensor_type
    if tensor.HasField("shape") and len(tensor.shape.dim) != len(shape):
        raise BadStrategy(
            f"input {value.name!r} has {len(tensor.shape.dim)} dims, inputs gives {list(shape)}",
            hint="an override may change sizes, not their number",
        )
    tensor.shape.Clear()
    tensor.shape.SetInParent()  # no dims at all is a shape too
    for size in shape:
        dim = tensor.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif 0 <= size <= DIM_MAX:
            dim.dim_value = size
        else:
            raise BadStrategy(
                f"inputs gives {value.name!r} the size {size}",
                hint=f"sizes are 0..{DIM_MAX}; a free size is a name, such as B",
            )
