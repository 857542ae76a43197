"""How long operators take on a device: measured on such a device, else work over assumed speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from din.domain.cuts import CutTable
from din.domain.node import NodeProfile

Milliseconds = npt.NDArray[np.float64]

GFLOPS_PER_CORE: Final[dict[str, float]] = {
    "avx512f": 80.0,
    "avx512_vnni": 80.0,
    "avx2": 40.0,
    "neon": 8.0,
    "asimd": 8.0,
}
"""Assumed of a core by the best of its instruction sets, for a device that was never measured.
Convolution nets reached 70 to 107 on one AVX-512 core; the others are scaled by vector width and
clock."""
GFLOPS_UNKNOWN: Final = 4.0
GFLOPS_ACCELERATOR: Final = 1000.0
THREADS_DEFAULT: Final = 2
"""As the backend takes them when no option says otherwise."""
OPERATOR_MS: Final = 0.003
"""What an operator takes by itself, however little it computes."""


def assumed_gflops(profile: NodeProfile, threads: int | None = None) -> float:
    """Speed of a worker on a node that was never measured."""
    if profile.accelerator is not None:
        return GFLOPS_ACCELERATOR
    best = max((GFLOPS_PER_CORE.get(each, 0.0) for each in profile.cpu_isa), default=0.0)
    cores = min(profile.cpu_cores, float(threads or THREADS_DEFAULT))
    return (best or GFLOPS_UNKNOWN) * max(cores, 0.05)


def processor_share(profile: NodeProfile, threads: int | None = None) -> float:
    """Above 0, at most 1: what a worker takes of the node's processor or accelerator."""
    if profile.accelerator is not None or profile.cpu_cores <= 0:
        return 1.0
    return min((threads or THREADS_DEFAULT) / profile.cpu_cores, 1.0)


def operator_ms(
    table: CutTable, gflops: float, measured: Sequence[float] | None = None
) -> Milliseconds:
    """Time of each operator of a model on one device."""
    return times_of(np.array([each.flops for each in table.operators]), gflops, measured)


def times_of(
    flops: npt.NDArray[np.int64], gflops: float, measured: Sequence[float] | None = None
) -> Milliseconds:
    """The same by the operators' work."""
    if measured is not None:
        return np.array(measured, dtype=np.float64)
    return flops / (gflops * 1e6) + OPERATOR_MS


def measured_for(
    table: CutTable, profiles: Mapping[str, Sequence[float]], device_class: str
) -> Sequence[float] | None:
    """The profile of a class of devices, where there is one of this very graph."""
    found = profiles.get(device_class)
    return found if found is not None and len(found) == len(table.operators) else None
