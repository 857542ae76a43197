"""The nodes that encode one tensor behind its producer and decode it before a consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from din.domain.encoding import Encoding

OPSET_CHANNELS: Final = 13
"""The first whose QuantizeLinear has an axis; before, channels are scaled by plain arithmetic."""
OPSET_QUANTISE: Final = 10
"""The first with QuantizeLinear; before, plain arithmetic rounds as well."""
CODE_MAX: Final = 255.0

_PARTS: Final = (
    "scale",
    "zero_point",
    "fp32",
    "scaled",
    "shifted",
    "one",
    "none",
    "half",
    "risen",
    "whole",
    "kept",
)


def inner_names(made: str) -> set[str]:
    """Every name that a coder uses beside the encoded tensor's own."""
    return {f"{made}.{part}" for part in _PARTS}


@dataclass(frozen=True)
class Coder:
    """One tensor, plain (`raw`) and encoded (`made`)."""

    raw: str
    made: str
    encoding: Encoding
    is_half: bool
    """The plain one is FP16."""
    opset: int
    rank: int
    """0 where it is unknown, which only a whole tensor's encoding may have."""

    def stored(self) -> list[TensorProto]:
        """Scales and zero points."""
        encoding = self.encoding
        if encoding.kind != "uint8":
            return []
        scales = np.asarray(encoding.scale, np.float32)
        zeros = np.asarray(encoding.zero_point, np.uint8)
        if self._is_by_hand:
            behind = 0 if encoding.axis is None else self.rank - encoding.axis - 1
            shape = () if encoding.axis is None else (-1, *[1] * behind)
            scaling = [
                self._tensor("scale", scales.reshape(shape)),
                self._tensor("zero_point", zeros.astype(np.float32).reshape(shape)),
            ]
            if self.opset < OPSET_QUANTISE:
                return [*scaling, self._tensor("half", np.float32(0.5))]
            return [
                *scaling,
                self._tensor("one", np.float32(1)),
                self._tensor("none", np.uint8(0)),
            ]
        if encoding.axis is None:
            scales, zeros = scales.reshape(()), zeros.reshape(())
        return [self._tensor("scale", scales), self._tensor("zero_point", zeros)]

    def encoders(self) -> list[NodeProto]:
        """From the plain tensor to the encoded one, in order."""
        if self.encoding.kind == "fp16":
            return [self._cast(self.raw, self.made, TensorProto.FLOAT16)]
        source, nodes = self.raw, list[NodeProto]()
        if self.is_half:
            source = self._inner("fp32")
            nodes.append(self._cast(self.raw, source, TensorProto.FLOAT))
        if not self._is_by_hand:
            return [*nodes, self._linear("QuantizeLinear", source, self.made)]
        scaled, shifted = self._inner("scaled"), self._inner("shifted")
        nodes.append(self._node("Div", [source, self._inner("scale")], scaled))
        nodes.append(self._node("Add", [scaled, self._inner("zero_point")], shifted))
        if self.opset < OPSET_QUANTISE:
            return [*nodes, *self._rounded(shifted)]
        unit = [shifted, self._inner("one"), self._inner("none")]
        return [*nodes, self._node("QuantizeLinear", unit, self.made)]

    def decoders(self) -> list[NodeProto]:
        """From the encoded tensor to the plain one, in order."""
        if self.encoding.kind == "fp16":
            return [self._cast(self.made, self.raw, TensorProto.FLOAT)]
        target = self._inner("fp32") if self.is_half else self.raw
        if self._is_by_hand:
            scaled, shifted = self._inner("scaled"), self._inner("shifted")
            unit = [self.made, self._inner("one"), self._inner("none")]
            is_old = self.opset < OPSET_QUANTISE
            nodes = [
                self._cast(self.made, shifted, TensorProto.FLOAT)
                if is_old
                else self._node("DequantizeLinear", unit, shifted),
                self._node("Sub", [shifted, self._inner("zero_point")], scaled),
                self._node("Mul", [scaled, self._inner("scale")], target),
            ]
        else:
            nodes = [self._linear("DequantizeLinear", self.made, target)]
        if self.is_half:
            nodes.append(self._cast(target, self.raw, TensorProto.FLOAT16))
        return nodes

    @property
    def _is_by_hand(self) -> bool:
        since = OPSET_QUANTISE if self.encoding.axis is None else OPSET_CHANNELS
        return self.encoding.kind == "uint8" and self.opset < since

    def _rounded(self, shifted: str) -> list[NodeProto]:
        """To the nearest code, halves up, and saturated."""
        risen, whole, kept = self._inner("risen"), self._inner("whole"), self._inner("kept")
        clip = self._node("Clip", [whole], kept)
        clip.attribute.append(helper.make_attribute("min", 0.0))
        clip.attribute.append(helper.make_attribute("max", CODE_MAX))
        return [
            self._node("Add", [shifted, self._inner("half")], risen),
            self._node("Floor", [risen], whole),
            clip,
            self._cast(kept, self.made, TensorProto.UINT8),
        ]

    def _inner(self, part: str) -> str:
        return f"{self.made}.{part}"

    def _tensor(self, part: str, value: np.ndarray | np.generic) -> TensorProto:
        return numpy_helper.from_array(np.asarray(value), self._inner(part))

    def _node(self, kind: str, sources: Sequence[str], target: str) -> NodeProto:
        return helper.make_node(kind, sources, [target], f"{target}.{kind}")

    def _cast(self, source: str, target: str, elem_type: int) -> NodeProto:
        node = self._node("Cast", [source], target)
        node.attribute.append(helper.make_attribute("to", elem_type))
        return node

    def _linear(self, kind: str, source: str, target: str) -> NodeProto:
        node = self._node(kind, [source, self._inner("scale"), self._inner("zero_point")], target)
        if self.encoding.axis is not None:
            node.attribute.append(helper.make_attribute("axis", self.encoding.axis))
        return node
