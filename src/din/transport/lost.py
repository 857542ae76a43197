"""What a feeder makes of failures that a worker tells, and of a channel's end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from din.errors import (
    Busy,
    DinError,
    ExecutionFailed,
    SpoiledTensor,
    WorkerLost,
    error_of_code,
)
from din.wire.worker import ComputeFailed, Placed

TENSORS_NAMED_MAX: Final = 4
NAME_CHARACTERS_MAX: Final = 128
MESSAGE_CHARACTERS_MAX: Final = 2000


def told_by(message: ComputeFailed) -> DinError:
    """The failure that a worker tells of one order."""
    text = message.message[:MESSAGE_CHARACTERS_MAX]
    error = error_of_code(message.code, text, message.hint[:MESSAGE_CHARACTERS_MAX])
    if isinstance(error, SpoiledTensor):
        error.tensor = message.tensor
    return error


def lost(reason: str, *, is_running: bool, is_told: bool) -> DinError:
    """What a channel's end means for one order: a worker takes them in turn, so of those that it
    had only the first can have been run, or have ended it."""
    if not is_told:
        return ExecutionFailed(reason)
    return WorkerLost(reason) if is_running else Busy(f"{reason} before it came to this run")


def shapes_of(inputs: Sequence[Placed]) -> str:
    """Names, types and shapes, of a few."""
    metas = [placed.meta for placed in inputs[:TENSORS_NAMED_MAX]]
    shown = [f"{meta.name} {meta.dtype}{list(meta.shape)}"[:NAME_CHARACTERS_MAX] for meta in metas]
    more = [f"{len(inputs) - len(metas)} more"] if len(inputs) > len(metas) else []
    return ", ".join([*shown, *more])
