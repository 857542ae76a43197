"""Probes: what only a run can tell. A probe is a slice with backend `probe` that is placed,
fetched, loaded, limited and watched as any other; it answers one order with one report.

The order goes in as JSON in the UINT8 tensor `din.order`, the report comes out in `din.report`.
Model inputs that are not given beside the order are made up where the probe runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from din.domain.encoding import OutputLoss
from din.domain.tensor import TensorSpec

PROBE: Final = "probe"
"""The backend of such a slice."""
PROBED: Final = "onnxruntime"
"""The engine that it looks at, which a node must have."""
ENGINES: Final = "engines"
"""Level of a comparison."""
ENGINES_OPTION: Final = "engines"
"""Backend option of a probe: engines that it needs beside PROBED, with commas between."""
ORDER_TENSOR: Final = "din.order"
REPORT_TENSOR: Final = "din.report"
ORDER_SPEC: Final = TensorSpec(ORDER_TENSOR, "UINT8", (None,))
REPORT_SPEC: Final = TensorSpec(REPORT_TENSOR, "UINT8", (None,))
REPORT_BYTES_MAX: Final = 3 * 1024 * 1024
"""Of one report; it has to fit a value of the store."""
ROUNDS_MAX: Final = 100
ROUNDS_DEFAULT: Final = 7

ProbeKind = Literal["profile", "verify", "calibrate", "precision"]


def probed_engines(options: Mapping[str, str]) -> tuple[str, ...]:
    """What a probe with these backend options needs beside PROBED."""
    return tuple(each for each in options.get(ENGINES_OPTION, "").split(",") if each)


class ProbePart(Struct, frozen=True, kw_only=True):
    """One of the models that a probe holds, in the order of its files of role `model`; they share
    the files of role `weights`."""

    index: int = -1
    """Of the slice; -1 = the whole."""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    backend: str = PROBED
    """The engine that is to run it."""


class ProbeOrder(Struct, frozen=True, kw_only=True):
    """What a probe is asked."""

    kind: ProbeKind
    parts: tuple[ProbePart, ...]
    """The whole first; `verify` has the slices after it, producers before consumers."""
    shapes: dict[str, tuple[int, ...]] = {}
    """Of inputs that are made up; those not named get typical sizes."""
    seed: int = 0
    rounds: int = ROUNDS_DEFAULT
    milliseconds_max: int = 10_000
    """No further round is begun after that time."""
    tensors: tuple[str, ...] = ()
    """What `calibrate` looks at."""
    samples: int = 1
    """Made-up inputs of `calibrate` and `precision`, by rising seeds."""
    is_stacked: bool = False
    """Given inputs have one axis more, the first, along which lie samples; `samples` is idle."""
    untested: tuple[str, ...] = ()
    """What `verify` and `precision` leave out: random operators are behind it."""
    is_quick: bool = False
    """`verify` leaves out the cuts at the model's own optimisation level."""


class TensorFacts(Struct, frozen=True, array_like=True):
    """One value of one run. `nbytes` is None for strings and for what is no tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int | None


class OperatorTime(Struct, frozen=True, kw_only=True):
    """What one operator took and made."""

    name: str
    kind: str
    ms: float
    """Its share of `whole_ms`."""
    outputs: tuple[TensorFacts, ...] = ()
    is_estimated: bool = False
    """The engine took it apart: its time is a share of what all such operators took."""


class ProfileReport(Struct, frozen=True, kw_only=True, tag="profile"):
    """Times and sizes of a whole model on one node."""

    inputs: tuple[TensorFacts, ...]
    operators: tuple[OperatorTime, ...]
    """In the order of the model. Their times add up to `whole_ms`."""
    whole_ms: float
    """Median of a run as the slice would run, optimised."""
    plain_ms: float
    """Median of the sum over operators without optimisation, by which the shares were found."""
    rounds: int
    coverage: float
    """Part of the operators that were measured by themselves, 0..1."""
    engine: str
    notes: tuple[str, ...] = ()


class TensorError(Struct, frozen=True, kw_only=True):
    """How far one tensor of the slices is from the same tensor of the whole."""

    name: str
    after_slice: int
    is_output: bool
    dtype: str
    shape: tuple[int, ...]
    max_absolute: float | None
    """None where there is no number: strings, other shapes, an infinite difference."""
    max_relative: float | None
    """Largest |difference| / (|whole| + floor); the floor is the absolute tolerance divided by the
    relative one, times the tensor's largest |whole| where that is over 1, so that this number alone
    is held against the relative tolerance."""
    is_equal: bool
    """Bit for bit, NaN at the same places included."""
    is_within: bool
    trouble: str = ""
    is_proof: bool = True
    """Whether a difference proves the cut wrong. Where halves crossed before it, rounding alone can
    turn a number, an order and a count: then only what is infinite or NaN on one side does."""


class VerifyLevel(Struct, frozen=True, kw_only=True):
    """All tensors at one optimisation level."""

    optimisation: str
    """`engines` = each slice on the backend that is to run it, against the whole on PROBED."""
    is_exact: bool
    """Whether they had to be equal bit for bit."""
    tensors: tuple[TensorError, ...]

    @property
    def is_right(self) -> bool:
        """Whether each is within its tolerance."""
        return all(each.is_within for each in self.tensors)


class VerifyReport(Struct, frozen=True, kw_only=True, tag="verify"):
    """Whole against sliced on the same inputs."""

    inputs: tuple[TensorFacts, ...]
    levels: tuple[VerifyLevel, ...]
    untested: tuple[str, ...] = ()
    engine: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether every level is."""
        return all(each.is_right for each in self.levels)


class TensorRange(Struct, frozen=True, kw_only=True):
    """Smallest and largest finite value of one tensor, and by channel (axis 1) where it has one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    channel_minima: tuple[float | None, ...] = ()
    channel_maxima: tuple[float | None, ...] = ()
    is_finite: bool = True
    """False where NaN or infinity was seen as well."""
    spread: float | None = None
    """How much samples differ from each other: deviation of their means over the deviation of all
    values, 0..1. None of one sample, or of a constant."""


class CalibrateReport(Struct, frozen=True, kw_only=True, tag="calibrate"):
    """Ranges of tensors over all samples."""

    inputs: tuple[TensorFacts, ...]
    ranges: tuple[TensorRange, ...]
    samples: int = 1
    notes: tuple[str, ...] = ()


class PrecisionReport(Struct, frozen=True, kw_only=True, tag="precision"):
    """What encodings at the cuts cost the outputs, over all samples."""

    inputs: tuple[TensorFacts, ...]
    outputs: tuple[OutputLoss, ...]
    samples: int = 1
    engine: str = ""


ProbeReport = ProfileReport | VerifyReport | CalibrateReport | PrecisionReport
