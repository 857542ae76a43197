"""Inputs for the fetched models, of small sizes, drawn from a fixed seed."""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class _Example(NamedTuple):
    tensor: str
    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    dtype: str = "float32"


EXAMPLES: Final = {
    "centerface": _Example("input.1", (1, 3, 96, 128), 0, 255),
    "magika": _Example("bytes", (2, 2048), 0, 256, "int32"),
    "ppocr-det": _Example("x", (1, 3, 64, 96)),
    "ppocr-cls": _Example("x", (1, 3, 48, 192)),
    "ppocr-rec": _Example("x", (1, 3, 48, 128)),
    "basic-pitch": _Example("serving_default_input_2:0", (1, 43844, 1), -0.3, 0.3),
    "blazeface": _Example("input:0", (1, 128, 128, 3)),
    "blazeface-back": _Example("input:0", (1, 256, 256, 3)),
}
"""By the name of the model."""
CENTERFACE_SHAPES: Final[dict[str, tuple[int | str, ...]]] = {"input.1": ("B", 3, "H", "W")}
"""Its file declares a shape that holds for no photo."""


def feeds_of(name: str) -> dict[str, Any]:
    """An input for a fetched model."""
    import numpy as np

    made = EXAMPLES[name]
    values = np.random.default_rng(7).uniform(made.low, made.high, made.shape)
    return {made.tensor: values.astype(made.dtype)}


def shapes_of(name: str) -> dict[str, tuple[int | str, ...]]:
    """Shapes to override when it is cut."""
    return CENTERFACE_SHAPES if name == "centerface" else {}
