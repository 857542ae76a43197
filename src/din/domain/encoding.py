"""How a tensor crosses between slices: as it is, as FP16, or as UINT8 by channel; and what a check
said of it. Figures only: the nodes that encode are appended by `slicing.encoding`."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from din.domain.strategy import Precision

EncodingKind = Literal["fp16", "uint8"]

BYTES_PER_ELEMENT: Final[dict[EncodingKind, int]] = {"fp16": 2, "uint8": 1}
DTYPES: Final[dict[EncodingKind, str]] = {"fp16": "FP16", "uint8": "UINT8"}
FP16_MAX: Final = 65504.0
"""Larger figures become infinite in FP16."""
CHANNEL_AXIS: Final = 1
CHANNELS_MAX: Final = 8_192
"""Of one tensor that is quantised by channel; with more it is quantised as a whole."""
ENCODINGS_MAX: Final = 1_024
TOLERANCES: Final[dict[EncodingKind, float]] = {"fp16": 0.01, "uint8": 0.05}
"""How far an output may be from the exact one, as a share of the exact one's largest magnitude."""
SAMPLES_MAX: Final = 16
SAMPLES_DEFAULT: Final = 8
"""Made-up inputs of one calibration."""


class Encoding(Struct, frozen=True, kw_only=True):
    """Of one tensor. UINT8: value = (code - zero_point) * scale, by channel along `axis` or, when
    that is None, one of each for the whole tensor."""

    kind: EncodingKind
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int | None = None


class EncodedTensor(Struct, frozen=True, kw_only=True):
    """What became of one tensor that crosses between slices."""

    tensor: str
    kind: Literal["exact", "fp16", "uint8"]
    nbytes: int | None = None
    """As it crosses; None where the shape depends on the input."""
    nbytes_exact: int | None = None
    channels: int = 0
    """With scales of their own; 0 = one scale, or none."""
    mib_per_second: float | None = None
    """What its way carries, where `auto` asked for it."""
    way: str = ""
    """From where that is known."""
    reason: str = ""


class OutputLoss(Struct, frozen=True, kw_only=True):
    """How far one output of the slices was from the whole's, over all samples."""

    name: str
    max_absolute: float | None
    """None where there is no number: another shape, NaN or infinity on one side."""
    mean_absolute: float | None
    loss: float | None
    """`max_absolute` over the largest magnitude of the whole's output."""
    trouble: str = ""


class RewriteCheck(Struct, frozen=True, kw_only=True):
    """By how much rewrites change what a model computes; kept in the version's record."""

    rewrites: tuple[str, ...]
    outputs: tuple[OutputLoss, ...] = ()
    """Of the rewritten model against the model as it was given."""
    samples: int = 0
    samples_from: Literal["", "made up", "given"] = ""
    node: str = ""
    checked_at: str = ""
    reason: str = ""
    """Why nothing is known."""


class PrecisionCheck(Struct, frozen=True, kw_only=True):
    """Why tensors of a version cross as they do; kept in its record."""

    asked: Precision
    kind: Literal["exact", "fp16", "uint8"]
    """The narrowest that is used."""
    reason: str
    tensors: tuple[EncodedTensor, ...] = ()
    outputs: tuple[OutputLoss, ...] = ()
    """Of the encoding that was checked last."""
    tolerance: float | None = None
    samples: int = 0
    """That were calibrated on."""
    samples_checked: int = 0
    samples_from: Literal["", "made up", "given"] = ""
    node: str = ""
    checked_at: str = ""
    warnings: tuple[str, ...] = ()
