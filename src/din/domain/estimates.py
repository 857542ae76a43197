"""How much memory a slice is expected to take, before it is measured and after.

    memory of a slice = 40 MiB + 2.5 x weights + 1.5 x peak of live values
    once measured     = what a loaded worker took + what two requests take of its arena
    where compressed  + 3 MiB + inputs + outputs + the largest output, as far as sizes are fixed

40 MiB is a worker before it holds a model; 2.5 is what ONNX Runtime with all optimisations was
measured to take per byte of weights (reordered copies); 1.5 is its arena's slack.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Final

from din.domain.model import Slice
from din.domain.tensor import DTYPE_BYTES, TensorSpec

WORKER_BASE_MIB: Final = 40
SLICE_BASE_MIB: Final = WORKER_BASE_MIB + 1
"""Of a slice, where parts of a MiB are added up: its estimate is rounded up in the end."""
WEIGHTS_FACTOR: Final = 2.5
ACTIVATIONS_FACTOR: Final = 1.5
MIB: Final = 1024 * 1024
ESTIMATE_MAX: Final = 2**53
COMPRESSOR_MIB: Final = 3
"""Of the library in one worker, from its first tensor on."""
REQUESTS_AT_ONCE: Final = 2
"""In the arena of one worker: one runs, one waits."""


def capped(estimate: int) -> int:
    """The estimate, kept where JSON and floats are exact: a file may declare absurd sizes."""
    return min(estimate, ESTIMATE_MAX)


def memory_mib(weights_bytes: int, peak_bytes: int) -> int:
    """Expected resident memory of one worker with these weights and this peak of live values."""
    held = WEIGHTS_FACTOR * capped(weights_bytes) + ACTIVATIONS_FACTOR * capped(peak_bytes)
    return WORKER_BASE_MIB + ceil(held / MIB)


def needed_mib(part: Slice, measured_mib: int | None) -> int:
    """What one worker of a slice needs, by what a loaded one was measured to take; None = none was.

    Where a size is free, warming used small ones: measuring can only raise the estimate then.
    """
    if measured_mib is None:
        return part.memory_mib
    sizes = [_nbytes(spec) for spec in (*part.inputs, *part.outputs)]
    if any(nbytes is None for nbytes in sizes):
        return max(part.memory_mib, measured_mib)
    more_mib = 0 if part.compression == "none" else compression_mib(part)
    return measured_mib + more_mib + ceil(REQUESTS_AT_ONCE * sum(filter(None, sizes)) / MIB)


def compression_mib(part: Slice) -> int:
    """What one worker takes beside where what crosses is compressed: inputs as they were, outputs
    that lie in the engine's memory first, and the largest once more as its frame."""
    inputs, outputs = (
        [_nbytes(spec) or 0 for spec in each] for each in (part.inputs, part.outputs)
    )
    return COMPRESSOR_MIB + ceil((sum(inputs) + sum(outputs) + max(outputs, default=0)) / MIB)


def _nbytes(spec: TensorSpec) -> int | None:
    """Of a tensor whose size is fixed."""
    width = DTYPE_BYTES.get(spec.dtype)
    if width is None or spec.shape is None:
        return None
    dims = [dim for dim in spec.shape if isinstance(dim, int)]
    return capped(width * prod(dims)) if len(dims) == len(spec.shape) else None
