"""The arithmetic of probes: made-up inputs, distances between tensors, ranges. Pure numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from msgspec import Struct

from din.backends.contract import Array
from din.domain.probe import TensorFacts, TensorRange
from din.domain.tensor import BYTES, TensorSpec, nbytes_of
from din.errors import BadTensor

MADE_UP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all made-up inputs together."""
CHANNELS_MAX: Final = 8_192

NUMPY_TYPES: Final[dict[str, Any]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": np.uint16,
    "FP8": np.uint8,
}
"""The array type that carries a datatype word; BF16 and FP8 are raw bits."""
FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})

GUESSES: Final[tuple[tuple[int | None, int], ...]] = (
    (None, 640),
    (3, 640),
    (None, 64),
    (3, 64),
    (None, 16),
    (None, 1),
)
"""What free dims are taken to be, in the order in which they are tried: (the second of four, where
an image has its colours, all others but the first). The first is always one sample."""


class Tolerance(Struct, frozen=True):
    """|slices - whole| <= absolute * largest + relative * |whole|, where `largest` is the largest
    |whole| of the tensor, at least 1: small values carry the rounding of large ones."""

    relative: float
    absolute: float


TOLERANCES: Final[dict[str, Tolerance]] = {
    "FP64": Tolerance(1e-4, 1e-6),
    "FP32": Tolerance(1e-4, 1e-6),
    "FP16": Tolerance(1e-2, 1e-3),
    "BF16": Tolerance(5e-2, 1e-2),
}
"""Where kernels may be fused otherwise than in the whole. Of quantised values (INT8, UINT8) one
step is allowed; all others have to be equal."""
BEHIND_HALVES: Final[dict[str, Tolerance]] = {
    "FP16": Tolerance(1e-2, 1e-2),
    "BF16": Tolerance(5e-2, 5e-2),
}
"""Of all floats made of what was rounded to this datatype at a cut and not in the whole."""
STEP_MAX: Final = 1


class Distance(Struct, frozen=True, kw_only=True):
    """Between two tensors of one name."""

    max_absolute: float | None
    max_relative: float | None
    is_equal: bool
    is_within: bool
    trouble: str = ""


def guessed_shapes(
    specs: Iterable[TensorSpec], given: Mapping[str, tuple[int, ...]], guess: tuple[int | None, int]
) -> dict[str, tuple[int, ...]]:
    """A shape for each input: the given one, else free dims at the guess; one symbol, one size."""
    colours, size = guess
    symbols: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    wanted = tuple(specs)
    for spec in wanted:
        shape = given.get(spec.name)
        if shape is not None:
            check_shape(spec, shape)
            symbols |= {
                dim: real
                for dim, real in zip(spec.shape or (), shape, strict=False)
                if isinstance(dim, str)
            }
    for spec in wanted:
        dims: list[int] = []
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, int):
                dims.append(dim)
                continue
            is_colour = axis == 1 and len(spec.shape or ()) == 4 and colours is not None
            taken = 1 if axis == 0 else colours if is_colour else size
            if isinstance(dim, str):
                taken = symbols.setdefault(dim, taken or size)
            dims.append(taken or size)
        shapes[spec.name] = given.get(spec.name, tuple(dims))
    return shapes


def check_shape(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raises BadTensor when a given shape is not one that the input can have."""
    declared = spec.shape
    fits = declared is None or (
        len(declared) == len(shape)
        and all(
            not isinstance(dim, int) or dim == real
            for dim, real in zip(declared, shape, strict=True)
        )
    )
    if not fits or any(size < 0 for size in shape):
        raise BadTensor(
            f"input {spec.name!r} is {spec.shown_shape()}, {list(shape)} was asked for",
            hint="keep the number of dims and the fixed sizes",
        )


def made_up(
    specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, Array]:
    """Inputs by chance: floats in [0, 1), whole numbers 1 or 2 (lengths, and ids that every table
    has), bytes as in a picture. Raises BadTensor over MADE_UP_BYTES_MAX."""
    total = sum(_size(each.dtype, shapes[each.name]) for each in specs)
    if total > MADE_UP_BYTES_MAX:
        raise BadTensor(
            f"made-up inputs would have {total} bytes, over {MADE_UP_BYTES_MAX}",
            hint="give smaller shapes, or inputs of your own",
        )
    random = np.random.default_rng(seed)
    return {each.name: _made_up(each.dtype, shapes[each.name], random) for each in specs}


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return 8 * prod(shape) if dtype == BYTES else nbytes_of(dtype, shape)


def _made_up(dtype: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if dtype == BYTES:
        return np.full(shape, b"din", np.object_)
    if dtype == "BF16":
        return (random.random(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in FLOATS:
        return random.random(shape).astype(NUMPY_TYPES[dtype])
    if dtype == "BOOL":
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype == "UINT8":
        return random.integers(0, 256, shape).astype(np.uint8)
    if dtype == "FP8":
        return random.integers(0, 64, shape).astype(np.uint8)
    return random.integers(1, 3, shape).astype(NUMPY_TYPES[dtype])


def facts_of(name: str, dtype: str, array: Array) -> TensorFacts:
    """What a report says of one array."""
    shape = tuple(int(size) for size in array.shape)
    return TensorFacts(name, dtype, shape, None if dtype == BYTES else nbytes_of(dtype, shape))


def distance(
    dtype: str, whole: Array, sliced: Array, *, is_exact: bool, behind: str | None = None
) -> Distance:
    """How far the slices' tensor is from the whole's. `is_exact`: only equal is within; `behind`:
    the halves that crossed before it."""
    if whole.shape != sliced.shape or whole.dtype != sliced.dtype:
        return incomparable(f"the whole makes {_words(whole)}, the slices {_words(sliced)}")
    if dtype in (BYTES, "FP8"):
        different = int(np.count_nonzero(whole != sliced))
        trouble = f"{different} of {whole.size} elements differ" if different else ""
        return _of(0.0 if not different else None, None, not different, not different, trouble)
    first, second = as_numbers(dtype, whole), as_numbers(dtype, sliced)
    if dtype not in FLOATS:
        return _of_integers(dtype, first, second, is_exact=is_exact)
    tolerance = TOLERANCES[dtype] if behind is None else BEHIND_HALVES[behind]
    return _of_floats(first, second, tolerance, is_exact=is_exact)


def incomparable(trouble: str) -> Distance:
    """Where there is nothing to subtract."""
    return _of(None, None, False, False, trouble)


def as_numbers(dtype: str, array: Array) -> Array:
    """An array to calculate with: BF16 as FP32, booleans as numbers."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.uint8) if dtype == "BOOL" else array


def _of_integers(dtype: str, first: Array, second: Array, *, is_exact: bool) -> Distance:
    if not first.size or np.array_equal(first, second):
        return _of(0.0, 0.0, True, True, "")
    high, low = np.maximum(first, second), np.minimum(first, second)
    # Subtracted in Python's own numbers: the difference of two INT64 may not be one.
    worst = int(np.argmax((high.astype(np.float64) - low.astype(np.float64)).reshape(-1)))
    absolute = int(high.reshape(-1)[worst]) - int(low.reshape(-1)[worst])
    relative = absolute / max(abs(int(first.reshape(-1)[worst])), 1)
    is_step = dtype in ("INT8", "UINT8") and absolute <= STEP_MAX
    different = int(np.count_nonzero(first != second))
    return _of(
        float(absolute),
        float(relative),
        False,
        is_step and not is_exact,
        f"{different} of {first.size} elements differ",
    )


def _of_floats(first: Array, second: Array, tolerance: Tolerance, *, is_exact: bool) -> Distance:
    is_nan = np.isnan(first)
    strange = int(np.count_nonzero(is_nan != np.isnan(second)))
    if strange:
        return incomparable(f"{strange} of {first.size} elements are NaN on one side")
    with np.errstate(all="ignore"):
        same = (first == second) | is_nan  # infinities of one sign included
        whole = np.where(same, 0, first).astype(np.float64)
        difference = np.abs(whole - np.where(same, 0, second).astype(np.float64))
        largest = np.abs(first[np.isfinite(first)]).max(initial=1.0)
        floor = tolerance.absolute / tolerance.relative * float(largest)
        relative = np.divide(difference, np.abs(np.where(same, 0, whole)) + floor)
    bits = f"u{first.dtype.itemsize}"
    is_equal = bool(((first.view(bits) == second.view(bits)) | is_nan).all())
    if not np.isfinite(difference).all():
        infinite = int(np.count_nonzero(~np.isfinite(difference)))
        return incomparable(f"{infinite} of {first.size} elements are infinite on one side")
    max_relative = float(relative.max(initial=0.0))
    is_within = is_equal if is_exact else max_relative <= tolerance.relative
    trouble = "" if is_within else f"{int(np.count_nonzero(~same))} of {first.size} elements differ"
    return _of(float(difference.max(initial=0.0)), max_relative, is_equal, is_within, trouble)


def _of(
    absolute: float | None, relative: float | None, is_equal: bool, is_within: bool, trouble: str
) -> Distance:
    return Distance(
        max_absolute=absolute,
        max_relative=relative,
        is_equal=is_equal,
        is_within=is_within,
        trouble=trouble,
    )


def _words(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"


def range_of(name: str, dtype: str, array: Array) -> TensorRange:
    """Smallest and largest finite values. Raises BadTensor for strings and raw bits."""
    if dtype in (BYTES, "FP8"):
        raise BadTensor(f"tensor {name!r} is {dtype}, which has no range")
    numbers = as_numbers(dtype, array).astype(np.float64)
    shape = tuple(int(size) for size in array.shape)
    minima: tuple[float | None, ...] = ()
    maxima: tuple[float | None, ...] = ()
    if len(shape) >= 2 and 0 < shape[1] <= CHANNELS_MAX:
        by_channel = np.moveaxis(numbers, 1, 0).reshape(shape[1], -1)
        pairs = [_ends(row) for row in by_channel]
        minima = tuple(low for low, _ in pairs)
        maxima = tuple(high for _, high in pairs)
    low, high = _ends(numbers)
    return TensorRange(
        name=name,
        dtype=dtype,
        shape=shape,
        minimum=low,
        maximum=high,
        channel_minima=minima,
        channel_maxima=maxima,
    )


def _ends(numbers: Array) -> tuple[float | None, float | None]:
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return None, None
    return float(finite.min()), float(finite.max())
