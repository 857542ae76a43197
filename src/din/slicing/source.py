"""Reads a model's bytes into a graph that the other modules may trust in its outer form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from msgspec import Struct
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from din.errors import BadModel, BadStrategy, TooLarge
from din.slicing.nearest import nearest

NODES_MAX: Final = 20_000
"""Of the graph, its subgraphs and its functions together."""

DIM_MAX: Final = 2**31 - 1

# What is not of an attribute's type is read by no engine; before types were written down, they were
# all 0.
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


class Held(Struct, frozen=True):
    """A node, and what its attributes hold beside numbers and texts: the graphs are the branches of
    If, the bodies of Loop and Scan."""

    node: NodeProto
    graphs: list[GraphProto]
    tensors: list[TensorProto]
    value: TensorProto | None
    """Of a Constant: what it stands for, one of its tensors."""


class Contents(NamedTuple):
    """A model and what is in it, found in one walk: the library makes its objects anew each time
    they are asked for."""

    model: ModelProto
    nodes: list[Held]
    """Of the top graph."""
    tensors: list[TensorProto]
    """All that are stored anywhere in the model."""


def read_model(data: bytes) -> Contents:
    """Parse a skeleton and check the outer form. Raises BadModel or TooLarge."""
    if not data:
        raise BadModel("the file is empty", hint="export or copy the model again")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise BadModel(
            f"the file is not ONNX or is truncated ({len(data)} bytes; {error})",
            hint="compare its size and SHA256 with the original; DIN reads .onnx, .tflite and "
            ".param files",
        ) from None
    _check_outer_form(model)
    return contents_of(model)


INT32_MAX: Final = 2**31 - 1
"""ONNX itself takes no higher version of operators."""


def _check_outer_form(model: ModelProto) -> None:
    if not model.HasField("graph") or not model.graph.node:
        raise BadModel(
            "the file holds no ONNX graph with operators",
            hint="DIN reads .onnx, .tflite and .param files; convert others with their exporter",
        )
    if model.ir_version < 1 or not (model.opset_import or model.ir_version < 3):
        raise BadModel(
            f"the model has ir_version {model.ir_version} and "
            f"{len(model.opset_import)} operator sets; it needs both",
            hint="export the model again with a current exporter",
        )
    sets = (model, *model.functions)
    wrong = [each for it in sets for each in it.opset_import if not 0 <= each.version <= INT32_MAX]
    if wrong:
        raise BadModel(
            f"the model wants version {wrong[0].version} of the operators of "
            f"{wrong[0].domain or 'ai.onnx'!r}, which is no version",
            hint="export the model again with a current exporter",
        )
    if not model.graph.output:
        raise BadModel("the graph has no outputs", hint="export the model again with outputs")


def contents_of(model: ModelProto) -> Contents:
    """Walk over a model. Raises BadModel for a negative size, TooLarge for too many operators."""
    tensors = [*model.graph.initializer]
    for sparse in model.graph.sparse_initializer:
        tensors += (sparse.values, sparse.indices)
    nodes = [*islice(map(held_by, model.graph.node), NODES_MAX + 1)]
    inner = [graph.node for held in nodes for graph in held.graphs]
    inner += [function.node for function in model.functions]
    every = [*nodes, *islice(chain.from_iterable(map(held_within, inner)), NODES_MAX)]
    if len(every) > NODES_MAX:
        raise TooLarge(
            f"the graph has more than {NODES_MAX} operators",
            hint="simplify or split the model before registering it",
        )
    tensors += tensors_of(every)
    for tensor in tensors:
        if min(tensor.dims[:], default=0) < 0:
            raise BadModel(
                f"the stored tensor {tensor.name!r} has shape {list(tensor.dims)}",
                hint="sizes are 0 or more; export the model again",
            )
    return Contents(model, nodes, tensors)


def held_by(node: NodeProto) -> Held:
    """What one node holds; its subgraphs are not entered."""
    graphs: list[GraphProto] = []
    tensors: list[TensorProto] = []
    value: TensorProto | None = None
    for attribute in node.attribute[:]:  # a list is read twice as fast as what holds it
        kind = attribute.type
        if kind in _PLAIN:
            continue
        if attribute.HasField("t"):
            tensors.append(attribute.t)
            if value is None and attribute.name == "value" and _is_constant(node):
                value = tensors[-1]
        if kind == AttributeProto.TENSOR:
            continue
        tensors += attribute.tensors
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            tensors += (sparse.values, sparse.indices)
        if kind == AttributeProto.TENSORS:
            continue
        if kind == AttributeProto.GRAPH or attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs += attribute.graphs
    return Held(node, graphs, tensors, value)


def _is_constant(node: NodeProto) -> bool:
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def held_within(nodes: Iterable[NodeProto]) -> Iterator[Held]:
    """These nodes and all nodes of their subgraphs, however deep."""
    for node in nodes:
        yield from unfolded(held_by(node))


def unfolded(held: Held) -> Iterator[Held]:
    """A node and all nodes of its subgraphs, however deep."""
    yield held
    for graph in held.graphs:
        yield from held_within(graph.node)


def nodes_within(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """These nodes and all nodes of their subgraphs, however deep."""
    return (held.node for held in held_within(nodes))


def every_node(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes of the graph, its subgraphs and the local functions."""
    yield from nodes_within(model.graph.node)
    for function in model.functions:
        yield from nodes_within(function.node)


def tensors_of(nodes: Iterable[Held]) -> Iterator[TensorProto]:
    """Tensors stored in the attributes of these nodes, and initialisers of their graphs."""
    for held in nodes:
        yield from held.tensors
        for graph in held.graphs:
            yield from graph.initializer


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
