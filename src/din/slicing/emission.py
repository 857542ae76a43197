"""Writes one part as an ONNX model of its own. Names and attributes stay as they are."""

from __future__ import annotations

from onnx import ModelProto, TypeProto, ValueInfoProto

from din.slicing.functions import reached
from din.slicing.operators import OperatorGraph
from din.slicing.parts import Part
from din.slicing.shapes import Shapes

DIN_METADATA: str = "din."
"""Prefix of the metadata that DIN stamps; what an earlier slicing stamped is left out."""


def emit(model: ModelProto, graph: OperatorGraph, shapes: Shapes, part: Part) -> ModelProto:
    """The part as a self-contained model, weights inside, not yet stamped."""
    made = ModelProto()
    made.ir_version = model.ir_version
    made.opset_import.extend(model.opset_import)
    made.producer_name = model.producer_name
    made.producer_version = model.producer_version
    made.domain = model.domain
    made.model_version = model.model_version
    made.doc_string = model.doc_string
    made.metadata_props.extend(
        each for each in model.metadata_props if not each.key.startswith(DIN_METADATA)
    )
    _emit_graph(made, model, graph, shapes, part)
    made.functions.extend(reached(model, made.graph.node))
    return made


def _emit_graph(
    made: ModelProto, model: ModelProto, graph: OperatorGraph, shapes: Shapes, part: Part
) -> None:
    source, target = model.graph, made.graph
    target.name = source.name or "graph"
    target.doc_string = source.doc_string
    target.metadata_props.extend(source.metadata_props)
    operators = part.operators
    target.node.extend(operator.proto for operator in operators)
    for node, operator in zip(target.node, operators, strict=True):
        node.name = operator.name
    target.initializer.extend(
        tensor for name, tensor in shapes.stored.items() if name in part.stored
    )
    target.sparse_initializer.extend(
        each for each in source.sparse_initializer if each.values.name in part.stored
    )
    declared = {value.name: value for value in (*source.input, *source.output)}
    for name in part.inputs:
        target.input.add().CopyFrom(_value(name, declared, shapes))
    for name in part.outputs:
        target.output.add().CopyFrom(_value(name, declared, shapes))
    inside = {name for each in operators for name in each.writes}
    outside = {*part.inputs, *part.outputs}
    within = inside - outside
    target.value_info.extend(value for name, value in shapes.declared.items() if name in within)
    names = inside | outside | part.stored
    target.quantization_annotation.extend(
        each for each in source.quantization_annotation if each.tensor_name in names
    )


def _value(name: str, declared: dict[str, ValueInfoProto], shapes: Shapes) -> ValueInfoProto:
    value = ValueInfoProto()
    if name in declared:
        value.CopyFrom(declared[name])
    value.name = name
    kind = shapes.types.get(name)
    if kind is not None:
        value.type.CopyFrom(_without_made_up(kind))
    return value


def _without_made_up(kind: TypeProto) -> TypeProto:
    """The type without the symbols that inference made up: they would differ from run to run."""
    cleaned = TypeProto()
    cleaned.CopyFrom(kind)
    if kind.WhichOneof("value") == "tensor_type" and kind.tensor_type.HasField("shape"):
        for dim in cleaned.tensor_type.shape.dim:
            if dim.dim_param.startswith("unk__"):
                dim.ClearField("dim_param")
    return cleaned
