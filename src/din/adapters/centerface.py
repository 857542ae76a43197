"""`centerface`: the four heads of a CenterFace model become faces in pixels of the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from din.adapters.arrays import Array
from din.adapters.catalogue import centerface_heads
from din.adapters.context import ImageContext, decode_context
from din.adapters.options import CenterFaceOptions
from din.domain.model import CONTEXT_TENSOR
from din.domain.tensor import TensorSpec
from din.errors import BadTensor

CANDIDATES_MAX: Final = 5000
"""Cells over the threshold that are looked at, the strongest first: bounds the quadratic part."""
EXPONENT_MAX: Final = 20.0
"""The scale head is a logarithm: larger values are nonsense and would overflow."""


class CenterFaceAdapter:
    """One configured adapter."""

    def __init__(
        self,
        options: CenterFaceOptions,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._options = options
        names = tuple(spec.name for spec in inputs if spec.name != CONTEXT_TENSOR)
        self._heads = centerface_heads(options, names)

    def run(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Raises BadTensor for heads that do not belong together."""
        del wanted, targets
        heads = self._heads
        context = decode_context(inputs[CONTEXT_TENSOR])
        heat = _head(inputs, heads.heat, 1)
        others = (
            _head(inputs, heads.scale, 2),
            _head(inputs, heads.offset, 2),
            _head(inputs, heads.landmarks, 10),
        )
        if any(each.shape[1:] != heat.shape[1:] for each in others):
            raise BadTensor("the heads of adapter 'centerface' have different heights and widths")
        boxes, scores, landmarks = self._decode(heat[0], *others)
        kept = suppress(boxes, self._options.nms)[: self._options.faces_max]
        labels = np.full(len(kept), self._options.label.encode(), np.object_)
        return {
            "boxes": _to_picture(boxes[kept], context),
            "scores": scores[kept],
            "labels": labels,
            "landmarks": _to_picture(landmarks[kept], context),
        }

    def stop(self) -> None:
        """The work is bounded by CANDIDATES_MAX."""

    def warm(self) -> bool:
        """Nothing is built on first use."""
        return True

    def _decode(
        self, heat: Array, scale: Array, offset: Array, landmarks: Array
    ) -> tuple[Array, Array, Array]:
        """Boxes, scores and landmarks in pixels of the tensor, the strongest first."""
        rows, columns = np.nonzero(heat > self._options.threshold)
        order = np.argsort(-heat[rows, columns], kind="stable")[:CANDIDATES_MAX]
        rows, columns = rows[order], columns[order]
        stride = np.float32(self._options.stride)
        sides = np.exp(np.minimum(scale[:, rows, columns], EXPONENT_MAX)) * stride
        centre_y = (rows + offset[0, rows, columns] + 0.5) * stride
        centre_x = (columns + offset[1, rows, columns] + 0.5) * stride
        top, left = centre_y - sides[0] / 2, centre_x - sides[1] / 2
        boxes = np.stack([left, top, left + sides[1], top + sides[0]], axis=1)
        points = landmarks[:, rows, columns]
        pairs = np.empty((len(rows), 10), np.float32)
        pairs[:, 0::2] = (points[1::2] * sides[1] + left).T
        pairs[:, 1::2] = (points[0::2] * sides[0] + top).T
        return boxes.astype(np.float32), heat[rows, columns].astype(np.float32), pairs


def suppress(boxes: Array, overlap_max: float) -> list[int]:
    """Positions of boxes that no stronger kept box overlaps by more than `overlap_max` (area of
    the intersection over area of the union). `boxes` come the strongest first."""
    areas = np.maximum(boxes[:, 2] - boxes[:, 0], 0) * np.maximum(boxes[:, 3] - boxes[:, 1], 0)
    alive = np.ones(len(boxes), np.bool_)
    kept: list[int] = []
    for position in range(len(boxes)):
        if not alive[position]:
            continue
        kept.append(position)
        low = np.maximum(boxes[position, :2], boxes[:, :2])
        high = np.minimum(boxes[position, 2:], boxes[:, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        united = areas[position] + areas - shared
        alive &= shared <= overlap_max * united
    return kept


def _head(inputs: Mapping[str, Array], name: str, channels: int) -> Array:
    head = inputs[name]
    if head.ndim != 4 or head.shape[:2] != (1, channels):
        raise BadTensor(
            f"head {name!r} of adapter 'centerface' has shape {list(head.shape)}, "
            f"[1, {channels}, height, width] is needed",
            hint="name the model's outputs with the option outputs",
        )
    return np.nan_to_num(head[0].astype(np.float32, copy=False))


def _to_picture(points: Array, context: ImageContext) -> Array:
    """Pairs (x, y) in pixels of the tensor -> in pixels of the picture, inside it."""
    result = np.empty(points.shape, np.float32)
    xs = (points[:, 0::2] - context.pad_x) / context.scale_x
    ys = (points[:, 1::2] - context.pad_y) / context.scale_y
    result[:, 0::2] = np.clip(xs, 0, context.width)
    result[:, 1::2] = np.clip(ys, 0, context.height)
    return result
