"""Outputs that are inputs handed through: no slice makes them, the gateway has them in the request.

In the edges they go from the gateway to the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping

from din.domain.tensor import TensorMeta
from din.gateway.routes.shape import RouteShape
from din.gateway.service import InferenceCall


def with_returned(
    shape: RouteShape, call: InferenceCall, made: Mapping[TensorMeta, memoryview]
) -> tuple[tuple[TensorMeta, ...], list[memoryview]]:
    """All wanted outputs, as they were asked for, else in the order of the signature."""
    found = {meta.name: (meta, view) for meta, view in made.items()}
    for meta, pieces in zip(call.metas, call.chunks, strict=True):
        if meta.name in shape.returned:
            # A copy: the answer may be on its way when the request's own memory is used again.
            found[meta.name] = (meta, memoryview(b"".join(pieces)))
    wanted = [found[name] for name in call.outputs or shape.answered]
    return tuple(meta for meta, _ in wanted), [view for _, view in wanted]
