"""What an inference gave back."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from din.domain.request import TraceStep


class Inference(Struct, kw_only=True):
    """The answer to one request."""

    request_id: str
    model_id: str
    version: str
    result: dict[str, Any]
    """Adapted models: plain values such as boxes, scores, labels. Else the same as `outputs`."""
    outputs: dict[str, Any]
    """Tensors as numpy arrays by name; empty where an adapter made plain values of them."""
    execution_trace: tuple[TraceStep, ...]
    """Which node did what, and how long it took."""
    is_adapted: bool = False
    """Whether the model's adapters made it."""
