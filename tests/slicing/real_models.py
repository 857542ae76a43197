"""The fetched models, with inputs of small sizes for each."""

from __future__ import annotations

from typing import Any

import numpy as np

NAMES = ("centerface", "magika", "ppocr-det", "ppocr-cls", "ppocr-rec", "basic-pitch", "blazeface")
RNG = np.random.default_rng(7)
CENTERFACE = {"input.1": ("B", 3, "H", "W")}


def feeds_of(name: str) -> dict[str, Any]:
    if name == "centerface":
        return {"input.1": RNG.uniform(0, 255, (1, 3, 96, 128)).astype(np.float32)}
    if name == "magika":
        return {"bytes": RNG.integers(0, 256, (2, 2048)).astype(np.int32)}
    if name == "basic-pitch":
        return {"serving_default_input_2:0": RNG.normal(0, 0.1, (1, 43844, 1)).astype(np.float32)}
    if name == "blazeface":
        return {"input:0": RNG.uniform(-1, 1, (1, 128, 128, 3)).astype(np.float32)}
    sides = {"ppocr-det": (64, 96), "ppocr-cls": (48, 192), "ppocr-rec": (48, 128)}[name]
    return {"x": RNG.uniform(-1, 1, (1, 3, *sides)).astype(np.float32)}


def shapes_of(name: str) -> dict[str, tuple[int | str, ...]]:
    return CENTERFACE if name == "centerface" else {}
