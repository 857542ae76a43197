"""The word for an array of any dtype; BYTES tensors are object arrays of `bytes`."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
