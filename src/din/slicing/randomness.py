"""Which operators give another answer each time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from onnx import ModelProto, NodeProto, TensorProto

from din.slicing.functions import FunctionKey, called_by, key_of
from din.slicing.source import Held, held_by, nodes_within, unfolded

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


def random_functions(model: ModelProto) -> frozenset[FunctionKey]:
    """The local functions that draw, directly or through others."""
    callers: dict[FunctionKey, set[FunctionKey]] = {}
    drawing: set[FunctionKey] = set()
    for function in model.functions:
        off = _surely_false((), map(held_by, function.node))
        for node in nodes_within(function.node):
            callers.setdefault(called_by(node), set()).add(key_of(function))
            if _draws(node, off):
                drawing.add(key_of(function))
    pending = list(drawing)
    while pending:
        fresh = callers.get(pending.pop(), set()) - drawing
        drawing |= fresh
        pending.extend(fresh)
    return frozenset(drawing)


def random_nodes(
    nodes: Sequence[Held], stored: Iterable[TensorProto], functions: frozenset[FunctionKey]
) -> list[bool]:
    """By node, whether it, its subgraphs and the functions that it calls draw. `stored`: the
    initialisers of their graph."""
    off = _surely_false(stored, nodes)

    def draws(node: NodeProto) -> bool:
        return _draws(node, off) or (bool(functions) and called_by(node) in functions)

    return [
        any(draws(each.node) for each in unfolded(held)) if held.graphs else draws(held.node)
        for held in nodes
    ]


def _draws(node: NodeProto, off: frozenset[str]) -> bool:
    kind = node.op_type
    if kind != "Dropout":
        return kind in RANDOM_KINDS
    return len(node.input) > 2 and node.input[2] != "" and node.input[2] not in off


def _surely_false(stored: Iterable[TensorProto], nodes: Iterable[Held]) -> frozenset[str]:
    """Names of truth values that are false in every run: what may switch Dropout off. A function
    sees its own only."""
    found = {each.name for each in stored if _is_false(each)}
    for held in nodes:
        if held.value is not None and _is_false(held.value):
            found.update(held.node.output)
    return frozenset(found)


def _is_false(tensor: TensorProto) -> bool:
    return (
        tensor.data_type == TensorProto.BOOL
        and not tensor.external_data
        and not any(tensor.raw_data)
        and not any(tensor.int32_data)
    )
