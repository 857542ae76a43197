"""Whether a version is as precise as a request wants it. Pure."""

from __future__ import annotations

from typing import Final, get_args

from din.domain.model import ModelManifest
from din.domain.request import PrecisionClass
from din.errors import UsageError
from din.gateway.service import InferenceCall

_ORDER: Final[tuple[PrecisionClass, ...]] = get_args(PrecisionClass)
"""The most precise first."""


def check_precision(manifest: ModelManifest, call: InferenceCall) -> None:
    """Raises UsageError where tensors cross less precisely than the request allows."""
    if call.precision is None or manifest.precision == "exact":
        return
    if _ORDER.index(manifest.precision) > _ORDER.index(call.precision):
        raise UsageError(
            f"precision {call.precision} is asked for, and between the slices of "
            f"{manifest.model_id!r} version {manifest.version} tensors cross as "
            f"{manifest.precision}",
            hint=f'ask for {manifest.precision}, or register the model with "precision": '
            f'"{call.precision}" in its slicing_strategy, under another id if both are wanted',
        )
