"""Which encoding a tensor between two slices may get, and whether it is worth one. Pure.

Encoding costs time at both ends and accuracy; it wins where the way is so slow that the bytes it
spares cost more. Whether the accuracy is still good enough only a run can tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, prod
from typing import Final

from msgspec import Struct

from din.domain.encoding import (
    BYTES_PER_ELEMENT,
    CHANNEL_AXIS,
    CHANNELS_MAX,
    FP16_MAX,
    TOLERANCES,
    Encoding,
    EncodingKind,
    OutputLoss,
)
from din.domain.model import Slice
from din.domain.probe import TensorRange
from din.domain.strategy import Precision
from din.domain.support import lacks, told
from din.domain.tensor import DTYPE_BYTES, TensorSpec
from din.placement.capability import Capability, operators_wish, wish_of
from din.placement.rates import Rate

CODING_MS_PER_MIB: Final = 1.0
"""Encoding and decoding together, per MiB of the plain tensor: twice what an idle core takes."""
GAIN_MIN: Final = 2.0
"""How many times its own time an encoding has to spare."""
SPREAD_MIN: Final = 0.1
"""Samples that differ by less than this share of all deviation look alike."""
CODES_MAX: Final = 255
HEADROOM: Final = 0.1
_MIB: Final = 1024 * 1024
_SMALLEST_SCALE: Final = 2.0**-126
"""A scale below is no normal FP32."""


class Refused(Struct, frozen=True):
    """Why a tensor crosses as it is."""

    reason: str


def kinds_of(precision: Precision) -> tuple[EncodingKind, ...]:
    """What is tried, in this order; the first that is accurate enough is used."""
    match precision:
        case "exact":
            return ()
        case "auto":
            return ("uint8", "fp16")
        case _:
            return (precision,)


def exact_bytes(spec: TensorSpec, seen: TensorRange | None = None) -> int | None:
    """Bytes of a tensor as it is: by its fixed shape, else as it was seen."""
    shape = spec.shape if spec.shape is not None else (None,)
    fixed = tuple(dim for dim in shape if isinstance(dim, int))
    if len(fixed) != len(shape):
        if seen is None:
            return None
        fixed = seen.shape
    return DTYPE_BYTES[spec.dtype] * prod(fixed)


def encoded_bytes(nbytes: int, dtype: str, kind: EncodingKind) -> int:
    """Bytes of the same elements encoded."""
    return nbytes // DTYPE_BYTES[dtype] * BYTES_PER_ELEMENT[kind]


def slow_enough(nbytes: int, dtype: str, kind: EncodingKind, way: Rate) -> str:
    """ "" where encoding a tensor of that size spares enough on that way, else why it does not."""
    spared = nbytes - encoded_bytes(nbytes, dtype, kind)
    spared_ms = spared / _MIB / way.mib_per_second * 1000
    coding_ms = nbytes / _MIB * CODING_MS_PER_MIB
    if spared_ms > GAIN_MIN * coding_ms:
        return ""
    return (
        f"its way carries {way.mib_per_second:.4g} MiB/s ({way.source}): {kind} would spare "
        f"{spared_ms:.3g} ms and cost {coding_ms:.3g} ms"
    )


def unsupported(plain: Slice, coded: Slice, kinds: Iterable[Capability]) -> str:
    """ "" unless encoding bars every kind of node that could hold a slice, else what its backend
    lacks there. Where no node could hold it anyway, encoding is not to blame."""
    wish = wish_of(plain)
    here = [each for each in kinds if wish.is_met_by(each)]
    asked = operators_wish(coded)
    if not here or any(asked.is_met_by(each) for each in here):
        return ""
    known = set(plain.needs.operators)
    missing = (
        lack
        for engine in here[0].engines
        if engine.backend == plain.backend
        for lack in lacks(coded.needs, engine)
        if lack.need not in known
    )
    return next(map(told, missing), "its backend cannot run what encodes")


def encoding_of(spec: TensorSpec, seen: TensorRange, kind: EncodingKind) -> Encoding | Refused:
    """The encoding by what calibration saw of a tensor."""
    if seen.minimum is None or seen.maximum is None:
        return Refused("calibration saw no finite value of it")
    largest = max(abs(seen.minimum), abs(seen.maximum))
    if kind == "fp16":
        if spec.dtype == "FP16":
            return Refused("it is FP16 already")
        if largest > FP16_MAX:
            return Refused(f"calibration saw {largest:.4g}, and FP16 ends at {FP16_MAX:g}")
        return Encoding(kind="fp16")
    if not seen.is_finite:
        return Refused("calibration saw NaN or infinity, which UINT8 has not")
    channels = _channels(spec, seen)
    pairs = channels or ((seen.minimum, seen.maximum),)
    scaled = [_scaled(low, high) for low, high in pairs]
    return Encoding(
        kind="uint8",
        scale=tuple(scale for scale, _ in scaled),
        zero_point=tuple(zero for _, zero in scaled),
        axis=CHANNEL_AXIS if channels else None,
    )


def _channels(spec: TensorSpec, seen: TensorRange) -> tuple[tuple[float, float], ...]:
    """Ends by channel where the tensor promises their number; () where it is taken as a whole."""
    if spec.shape is None or len(spec.shape) <= CHANNEL_AXIS:
        return ()
    count = spec.shape[CHANNEL_AXIS]
    minima, maxima = seen.channel_minima, seen.channel_maxima
    if count != len(minima) or count != len(maxima) or not 1 < len(minima) <= CHANNELS_MAX:
        return ()
    return tuple(
        (low if low is not None else 0.0, high if high is not None else 0.0)
        for low, high in zip(minima, maxima, strict=True)
    )


def _scaled(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of a range, widened to hold 0, which is then met exactly, and on each
    side by HEADROOM, for what calibration did not see."""
    low, high = min(low, 0.0) * (1 + HEADROOM), max(high, 0.0) * (1 + HEADROOM)
    scale = high / CODES_MAX - low / CODES_MAX
    if not isfinite(scale) or scale < _SMALLEST_SCALE:
        scale = 1.0
    return scale, min(max(round(-low / scale), 0), CODES_MAX)


def worst_of(losses: tuple[OutputLoss, ...]) -> OutputLoss | None:
    """The output that lost most; one without a number comes first."""
    unknown = [each for each in losses if each.loss is None]
    if unknown:
        return unknown[0]
    return max(losses, key=lambda each: each.loss or 0.0, default=None)


def tolerance_of(kind: EncodingKind, wished: float | None) -> float:
    """What an output may lose."""
    return wished if wished is not None else TOLERANCES[kind]


def too_lossy(losses: tuple[OutputLoss, ...], tolerance: float) -> str:
    """ "" where every output is within the tolerance, else which is not and by how much."""
    worst = worst_of(losses)
    if worst is None:
        return "no output could be compared: random operators are before all of them"
    if worst.loss is None:
        return f"output {worst.name!r} cannot be compared: {worst.trouble}"
    if worst.loss <= tolerance:
        return ""
    return (
        f"output {worst.name!r} is off by {worst.loss:.2%} of its largest magnitude "
        f"(up to {worst.max_absolute:.3g}), over the tolerance of {tolerance:.2%}"
    )


def spread_warnings(ranges: tuple[TensorRange, ...], samples: int) -> tuple[str, ...]:
    """Whether the samples say more than one of them would: their number alone does not."""
    if samples < 2:
        return ("one sample was calibrated on: ranges of other inputs may be wider",)
    known = [each.spread for each in ranges if each.spread is not None]
    if known and max(known) < SPREAD_MIN:
        return (
            f"the {samples} calibration samples look alike (spread {max(known):.2f}, want "
            f"{SPREAD_MIN:g}): more of the same kind add nothing, other kinds would",
        )
    return ()
