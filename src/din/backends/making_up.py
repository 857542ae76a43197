"""Input for the run that warms a model up before it serves."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from din.backends.contract import Array
from din.domain.tensor import TensorSpec

WARM_FREE_DIM: Final = 64
WARM_BYTES_MAX: Final = 256 * 1024 * 1024


def made_up_input(spec: TensorSpec, numpy_type: type[Any]) -> Array | None:
    """Ones; a free first axis is 1, any other free one WARM_FREE_DIM. None when that were too
    much."""
    shape = [
        dim if isinstance(dim, int) else (1 if position == 0 else WARM_FREE_DIM)
        for position, dim in enumerate(spec.shape or ())
    ]
    dtype = np.dtype(numpy_type)
    if int(np.prod(shape, dtype=np.float64)) * dtype.itemsize > WARM_BYTES_MAX:
        return None
    if dtype == np.object_:
        return np.full(shape, b"", np.object_)
    return np.ones(shape, dtype)
