"""Types of what operators of com.microsoft make, which ONNX's inference does not know.

For inference alone they are replaced by standard operators with outputs of the same type: without
a type nothing can cross to another slice. An operator that is not here leaves its outputs untyped,
and a cut there is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from onnx import NodeProto, TensorProto, ValueInfoProto, helper

DOMAIN: Final = "com.microsoft"
ANY_SHAPE: Final = "din.any_shape"
"""Input of the replaced graph: a shape of which nothing is known."""


class _Same(NamedTuple):
    """Element type and shape of an input."""

    place: int


class _Element(NamedTuple):
    """Element type of an input, any shape."""

    place: int


class _Kind(NamedTuple):
    """This element type, any shape."""

    element: int


_Rule = _Same | _Element | _Kind
_FLOATS: Final = _Kind(TensorProto.FLOAT)

_RENAMED: Final = {
    "FusedConv": "Conv",
    "FusedGemm": "Gemm",
    "QuantizeLinear": "QuantizeLinear",
    "DequantizeLinear": "DequantizeLinear",
}
"""Standard operators with more attributes."""

_OUTPUTS: Final[dict[str, tuple[_Rule, ...]]] = {
    **dict.fromkeys(
        (
            "BiasAdd",
            "BiasGelu",
            "BiasSoftmax",
            "FastGelu",
            "Gelu",
            "GroupNorm",
            "QLinearLeakyRelu",
            "QLinearSigmoid",
            "QLinearSoftmax",
            "QuickGelu",
            "RotaryEmbedding",
        ),
        (_Same(0),),
    ),
    **dict.fromkeys(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
        (_Same(0), _FLOATS, _FLOATS, _Same(0)),
    ),
    **dict.fromkeys(
        (
            "Attention",
            "BiasSplitGelu",
            "DecoderMaskedMultiHeadAttention",
            "DepthToSpace",
            "FusedMatMul",
            "GroupQueryAttention",
            "Inverse",
            "MatMulBnb4",
            "MatMulFpQ4",
            "MatMulNBits",
            "MoE",
            "MultiHeadAttention",
            "NhwcFusedConv",
            "NhwcMaxPool",
            "PackedAttention",
            "Pad",
            "QLinearAdd",
            "QLinearAveragePool",
            "QLinearGlobalAveragePool",
            "QLinearMul",
            "QLinearReduceMean",
            "QLinearWhere",
            "QMoE",
            "SparseAttention",
            "TransposeMatMul",
            "Trilu",
        ),
        (_Element(0),),
    ),
    "EmbedLayerNormalization": (_Element(2), _Kind(TensorProto.INT32), _Element(2)),
    "QLinearConcat": (_Element(1),),
    "DynamicQuantizeMatMul": (_FLOATS,),
    "MatMulIntegerToFloat": (_Element(2),),
    "QAttention": (_FLOATS,),
    "QGemm": (_Element(8),),
}
"""By output; the last rule holds for all that follow."""


def any_shape() -> ValueInfoProto:
    """The input that stand-ins read."""
    return helper.make_tensor_value_info(ANY_SHAPE, TensorProto.INT64, None)


def stand_ins(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, with those of com.microsoft that are known here replaced."""
    for node in nodes:
        rules = _OUTPUTS.get(node.op_type, ()) if node.domain == DOMAIN else ()
        if node.domain == DOMAIN and node.op_type in _RENAMED:
            yield _renamed(node, _RENAMED[node.op_type])
        elif rules and node.op_type == "FusedMatMul" and not _is_turned(node):
            yield _renamed(node, "MatMul")
        elif rules:
            yield from _made(node, rules)
        else:
            yield node


def _is_turned(node: NodeProto) -> bool:
    return any(each.name.startswith("trans") and each.i for each in node.attribute)


def _renamed(node: NodeProto, op_type: str) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    made.op_type = op_type
    made.domain = ""
    return made


def _made(node: NodeProto, rules: tuple[_Rule, ...]) -> Iterator[NodeProto]:
    for place, name in enumerate(node.output):
        rule = rules[min(place, len(rules) - 1)]
        if not name:
            continue
        if isinstance(rule, _Kind):
            value = helper.make_tensor("value", rule.element, [1], [0])
            yield helper.make_node("ConstantOfShape", [ANY_SHAPE], [name], value=value)
        elif rule.place < len(node.input) and node.input[rule.place]:
            read = node.input[rule.place]
            if isinstance(rule, _Same):
                yield helper.make_node("Identity", [read], [name])
            else:
                yield helper.make_node("Reshape", [read, ANY_SHAPE], [name])
