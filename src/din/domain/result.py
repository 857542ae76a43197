"""The answer to one request as one thing, whatever form it has on its way; and so is a trace."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from din.domain.request import Trace, TraceStep
from din.domain.tensor import TensorMeta

CONTENT_TYPE: Final = "application/vnd.din.result+flatbuffers"
"""Of its binary form."""
SUFFIX: Final = ".dinr"
"""Of files in that form."""


class Result(Struct, frozen=True, kw_only=True):
    """What a request gave. A trace is the result of a request without its tensors."""

    request_id: str
    model_id: str
    version: str
    status: str = "completed"
    is_adapted: bool = False
    """The outputs are the adapters', not the model's own."""
    outputs: tuple[TensorMeta, ...] = ()
    execution_trace: tuple[TraceStep, ...] = ()
    trace: Trace | None = None


def result_of_trace(trace: Trace) -> Result:
    """A trace as a result."""
    return Result(
        request_id=trace.request_id,
        model_id=trace.model_id,
        version=trace.version,
        status=trace.status,
        execution_trace=trace.execution_trace,
        trace=trace,
    )
