"""Changes of operators that a strategy asks for, because a backend lacks something. They change
what the model computes, so nothing else ever makes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from onnx import AttributeProto, ModelProto, NodeProto

from din.domain.strategy import Rewrite
from din.errors import BadStrategy
from din.slicing.source import every_node

NAMES_SHOWN_MAX: Final = 5
_MODE: Final = "coordinate_transformation_mode"
_SINCE: Final = 11
"""Resize has the attribute since this operator set; before, it was what is now `asymmetric`."""


def rewritten(model: ModelProto, asked: Sequence[Rewrite]) -> tuple[str, ...]:
    """Rewrite the model in place; warnings that say what was changed. Raises BadStrategy for a
    rewrite that finds nothing to change."""
    return tuple(_rewritten(model, name) for name in dict.fromkeys(asked))


def _rewritten(model: ModelProto, name: Rewrite) -> str:
    change = _REWRITES[name]
    changed = [
        node.name or f"{node.op_type} number {place}"
        for place, node in enumerate(every_node(model))
        if change(model, node)
    ]
    if not changed:
        raise BadStrategy(
            f"rewrite {name!r} finds nothing to change in this model",
            hint="leave it out: the model has no operator of that kind",
        )
    shown = ", ".join(repr(each) for each in changed[:NAMES_SHOWN_MAX])
    more = f" and {len(changed) - NAMES_SHOWN_MAX} more" if len(changed) > NAMES_SHOWN_MAX else ""
    plural = "s" if len(changed) > 1 else ""
    return (
        f"rewrite {name} changed {len(changed)} operator{plural} ({shown}{more}): the model "
        "computes other numbers than the file"
    )


def _half_pixel_to_asymmetric(model: ModelProto, node: NodeProto) -> bool:
    if node.op_type != "Resize" or node.domain not in ("", "ai.onnx"):
        return False
    versions = (each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if max(versions, default=1) < _SINCE:
        return False
    given = next((each for each in node.attribute if each.name == _MODE), None)
    if given is None:
        given = node.attribute.add(name=_MODE, type=AttributeProto.STRING, s=b"half_pixel")
    if given.s != b"half_pixel":
        return False
    given.s = b"asymmetric"
    return True


_REWRITES: Final[dict[Rewrite, Callable[[ModelProto, NodeProto], bool]]] = {
    "resize_half_pixel_to_asymmetric": _half_pixel_to_asymmetric,
}
