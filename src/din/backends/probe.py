"""The backend of probes: holds a whole model, and perhaps its slices, and answers an order with a
report. Loads nothing before it is asked: one session lives at a time, however many parts there are.

What is made up, measured and compared is in the other files of this room that begin with `probe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from din.backends.contract import Array
from din.backends.probe_calibrate import calibrate
from din.backends.probe_models import Models
from din.backends.probe_precision import precision
from din.backends.probe_profile import profile
from din.backends.probe_verify import verify
from din.domain.malformed import MALFORMED
from din.domain.probe import (
    ORDER_SPEC,
    ORDER_TENSOR,
    REPORT_BYTES_MAX,
    REPORT_SPEC,
    REPORT_TENSOR,
    ProbeOrder,
    ProbeReport,
)
from din.domain.tensor import TensorSpec
from din.errors import BadTensor, TooLarge

_ORDER: Final = msgspec.json.Decoder(ProbeOrder)


def load_probe(
    models: Sequence[bytes],
    weights: Mapping[str, memoryview],
    options: Mapping[str, str],
    inputs: tuple[TensorSpec, ...],
) -> ProbeSession:
    """A probe over these models and the weights that they refer to; `inputs` are what an order
    comes with. Raises UsageError for a bad option."""
    return ProbeSession(Models(models, weights, options), inputs or (ORDER_SPEC,))


class ProbeSession:
    """Implements contract.Session."""

    def __init__(self, models: Models, inputs: tuple[TensorSpec, ...]) -> None:
        self._models = models
        self._inputs = inputs

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The order, and what is given of the model's inputs."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The report."""
        return (REPORT_SPEC,)

    def run(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Carry out one order. Raises BadTensor for what it cannot mean, BadModel, TooLarge for a
        report over its limit, ExecutionFailed."""
        del wanted, targets
        order = _order_of(inputs)
        given = {name: array for name, array in inputs.items() if name != ORDER_TENSOR}
        try:
            report = msgspec.json.encode(_carry_out(self._models, order, given))
        finally:
            self._models.close()
        if len(report) > REPORT_BYTES_MAX:
            raise TooLarge(
                f"the report has {len(report)} bytes, over {REPORT_BYTES_MAX}",
                hint="the model has too many operators or channels for one report",
            )
        return {REPORT_TENSOR: np.frombuffer(report, np.uint8)}

    def stop(self) -> None:
        """End what runs now, between two operators."""
        self._models.stop()

    def warm(self) -> bool:
        """Nothing to warm: an order says what to load."""
        return False


def _order_of(inputs: Mapping[str, Array]) -> ProbeOrder:
    try:
        return _ORDER.decode(inputs[ORDER_TENSOR].tobytes())
    except (KeyError, *MALFORMED) as error:
        raise BadTensor(
            f"the order of a probe cannot be read: {error}",
            hint="node and gateway may be of different versions of DIN",
        ) from None


def _carry_out(models: Models, order: ProbeOrder, given: Mapping[str, Array]) -> ProbeReport:
    models.check(order.parts)
    match order.kind:
        case "profile":
            return profile(models, order, given)
        case "verify":
            return verify(models, order, given)
        case "calibrate":
            return calibrate(models, order, given)
        case "precision":
            return precision(models, order, given)
