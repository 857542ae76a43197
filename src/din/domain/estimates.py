"""How much memory a slice is expected to take, before it is measured.

    memory of a slice = 40 MiB + 2.5 x weights + 1.5 x peak of live values

40 MiB is a worker before it holds a model; 2.5 is what ONNX Runtime with all optimisations was
measured to take per byte of weights (reordered copies); 1.5 is its arena's slack.
"""

from __future__ import annotations

from math import ceil
from typing import Final

WORKER_BASE_MIB: Final = 40
SLICE_BASE_MIB: Final = WORKER_BASE_MIB + 1
"""Of a slice, where parts of a MiB are added up: its estimate is rounded up in the end."""
WEIGHTS_FACTOR: Final = 2.5
ACTIVATIONS_FACTOR: Final = 1.5
MIB: Final = 1024 * 1024
ESTIMATE_MAX: Final = 2**53


def capped(estimate: int) -> int:
    """The estimate, kept where JSON and floats are exact: a file may declare absurd sizes."""
    return min(estimate, ESTIMATE_MAX)


def memory_mib(weights_bytes: int, peak_bytes: int) -> int:
    """Expected resident memory of one worker with these weights and this peak of live values."""
    held = WEIGHTS_FACTOR * capped(weights_bytes) + ACTIVATIONS_FACTOR * capped(peak_bytes)
    return WORKER_BASE_MIB + ceil(held / MIB)
