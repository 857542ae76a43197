"""Which operators give another answer each time."""

from __future__ import annotations

from typing import Final

from onnx import GraphProto, ModelProto, NodeProto

from din.slicing.source import nodes_within

RANDOM_KINDS: Final = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "BiasDropout",
        "BitmaskDropout",
        "BitmaskBiasDropout",
        "Sampling",
    }
)
"""By name in any domain: of the standard, and those of com.microsoft that draw."""

FunctionKey = tuple[str, str]


def random_functions(model: ModelProto) -> frozenset[FunctionKey]:
    """(domain, name) of the local functions that draw, directly or through others."""
    drawing: set[FunctionKey] = set()
    while True:
        found = {
            (function.domain, function.name)
            for function in model.functions
            if any(_draws(node, drawing, model.graph) for node in nodes_within(function.node))
        }
        if found == drawing:
            return frozenset(found)
        drawing = found


def random_node(node: NodeProto, functions: frozenset[FunctionKey], graph: GraphProto) -> bool:
    """Whether a node, its subgraphs and the functions that it calls draw."""
    return any(_draws(each, functions, graph) for each in nodes_within([node]))


def _draws(
    node: NodeProto, functions: set[FunctionKey] | frozenset[FunctionKey], graph: GraphProto
) -> bool:
    if node.op_type in RANDOM_KINDS or (node.domain, node.op_type) in functions:
        return True
    return node.op_type == "Dropout" and len(node.input) > 2 and not _is_off(node.input[2], graph)


def _is_off(training_mode: str, graph: GraphProto) -> bool:
    """Whether Dropout's third input is surely false."""
    if not training_mode:
        return True
    for tensor in graph.initializer:
        if tensor.name == training_mode:
            return not any(tensor.raw_data) and not any(tensor.int32_data)
    return any(
        training_mode in node.output
        and node.op_type == "Constant"
        and all(not any(each.t.raw_data) and not any(each.t.int32_data) for each in node.attribute)
        for node in graph.node
    )
