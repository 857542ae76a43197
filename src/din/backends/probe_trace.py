"""ONNX Runtime's profile as it writes it, and what of it counts: one time per operator of the top
graph and round. Pure.

Events of a subgraph (the body of a Loop) come before the event of the operator that ran it, inside
an event `SequentialExecutor::Execute` of their own; the last of these in a run is the top graph's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Final

import msgspec
from msgspec import Struct

from din.domain.malformed import MALFORMED
from din.errors import ExecutionFailed

EXECUTE: Final = "SequentialExecutor::Execute"
RUN: Final = "model_run"
KERNEL: Final = "_kernel_time"

DTYPES: Final[dict[str, str]] = {
    "float": "FP32",
    "double": "FP64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "bool": "BOOL",
    "string": "BYTES",
    **{
        f"{sign}int{bits}": f"{sign}int{bits}".upper()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float8e4m3fn": "FP8",
    "float8e4m3fnuz": "FP8",
    "float8e5m2": "FP8",
    "float8e5m2fnuz": "FP8",
}
"""The profile's words for element types -> DIN's."""


class Event(Struct, frozen=True):
    """One line of the profile."""

    cat: str
    name: str
    ts: int
    """Microseconds since the session began."""
    dur: int
    args: dict[str, Any] = {}


class Measured(Struct, frozen=True):
    """One kernel that ran in the top graph."""

    name: str
    us: float
    """Median over rounds."""
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """(element type in the engine's word, shape) of each output that it has."""


def read_rounds(data: bytes) -> tuple[tuple[Event, ...], ...]:
    """Events of the top graph's operators, by round. Raises ExecutionFailed."""
    try:
        events = msgspec.json.decode(data, type=list[Event])
    except MALFORMED as error:
        raise ExecutionFailed(f"the engine's profile cannot be read: {error}") from None
    rounds: list[tuple[Event, ...]] = []
    open_events: list[Event] = []
    closed: list[Event] = []
    for event in events:
        if event.cat == "Node":
            open_events.append(event)
        elif event.name == EXECUTE:
            first = len(open_events)
            while first and open_events[first - 1].ts >= event.ts:
                first -= 1
            closed = open_events[first:]
            del open_events[first:]
        elif event.name == RUN:
            rounds.append(tuple(closed))
            open_events, closed = [], []
    return tuple(rounds)


def medians(rounds: Sequence[Iterable[Event]]) -> dict[str, Measured]:
    """Median time of each kernel by its operator's name; sizes are those of the last round."""
    times: dict[str, list[float]] = {}
    last: dict[str, Event] = {}
    for events in rounds:
        for event in events:
            if not event.name.endswith(KERNEL):
                continue
            name = event.name.removesuffix(KERNEL)
            times.setdefault(name, []).append(float(max(event.dur, 0)))
            last[name] = event
    return {
        name: Measured(name, median(found), _outputs(last[name].args))
        for name, found in times.items()
    }


def _outputs(args: dict[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """`[{"float": [1, 3]}, ...]` as pairs; what is written in another form is left out."""
    found = args.get("output_type_shape", [])
    try:
        pairs = msgspec.convert(found, list[dict[str, tuple[int, ...]]])
    except msgspec.ValidationError:
        return ()
    return tuple(next(iter(pair.items())) for pair in pairs if len(pair) == 1)
