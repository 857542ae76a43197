"""What `din trace show FILE.dinr` prints of the result of a request: its tensors and who made them.

Trusts nothing in the file: names are shown as one line, sizes are held against the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import click
import msgspec

from din.cli.display import UNKNOWN, Column, byte_count, number, show_document, show_table
from din.client.arrays import decode_array
from din.client.saved import read_bytes
from din.domain.request import TraceStep
from din.domain.result import Result
from din.domain.tensor import TensorMeta
from din.errors import Internal, UsageError
from din.observability.printable import one_line, printable
from din.wire.result import decode_result

SCHEMA: Final = "din.result/1"
_WIDENED: Final = {"FP16": "<f4", "FP32": "<f4", "FP64": "<f8"}


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a result. Bounds are of its finite numbers; None where there is none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    minimum: float | None = None
    maximum: float | None = None
    nonfinite: int | None = None
    """How many are NaN or infinite; None where the type is not one of numbers."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A result without the content of its tensors, as `-o json` shows it."""

    schema: str = SCHEMA
    request_id: str
    model_id: str
    version: str
    status: str
    is_adapted: bool
    outputs: tuple[Output, ...]
    execution_trace: tuple[TraceStep, ...]


OUTPUT_COLUMNS: Final[tuple[Column[Output], ...]] = (
    Column("OUTPUT", lambda each: each.name),
    Column("TYPE", lambda each: each.dtype),
    Column("SHAPE", lambda each: str(list(each.shape))),
    Column("SIZE", lambda each: byte_count(each.nbytes), is_number=True),
    Column("MIN", lambda each: _bound(each.minimum), is_number=True),
    Column("MAX", lambda each: _bound(each.maximum), is_number=True),
    Column(
        "NAN/INF",
        lambda each: UNKNOWN if each.nonfinite is None else str(each.nonfinite),
        is_number=True,
    ),
)
STEP_COLUMNS: Final[tuple[Column[TraceStep], ...]] = (
    Column("PHASE", lambda step: step.phase),
    Column("NODE", lambda step: step.node),
    Column("MS", lambda step: number(step.latency_ms, 1), is_number=True),
    Column("QUEUE MS", lambda step: number(step.queue_ms, 1), is_number=True),
    Column("GPU %", lambda step: number(step.gpu_util), is_number=True),
)


def read_kept(path: str | os.PathLike[str]) -> tuple[Result, Callable[[], Kept]]:
    """What a file says, and what its tensors hold once that is asked for. Both raise UsageError or
    TooLarge with the name of the file."""
    shown = os.fspath(path)
    result, views = decode_result(read_bytes(path), shown)
    return result, lambda: _kept(result, views, shown)


def _kept(result: Result, views: tuple[memoryview, ...], shown: str) -> Kept:
    try:
        outputs = tuple(
            _output(meta, view) for meta, view in zip(result.outputs, views, strict=True)
        )
    except Internal as error:
        raise UsageError(
            f"{shown} is damaged: {error.message}",
            hint="keep it again: din infer MODEL --input FILE --output FILE.dinr",
        ) from None
    return Kept(
        request_id=result.request_id,
        model_id=result.model_id,
        version=result.version,
        status=result.status,
        is_adapted=result.is_adapted,
        outputs=outputs,
        execution_trace=result.execution_trace,
    )


def show_kept(output: str, kept: Kept) -> None:
    """In one of the five forms."""
    if output in ("json", "yaml"):
        show_document(output, msgspec.json.encode(kept))
        return
    if output == "name":
        click.echo(one_line(kept.request_id))
        return
    click.echo(
        printable(f"{kept.request_id}  {kept.model_id} version {kept.version}  {kept.status}")
    )
    show_table(OUTPUT_COLUMNS, kept.outputs)
    if kept.execution_trace:
        click.echo()
        show_table(STEP_COLUMNS, kept.execution_trace)


def _output(meta: TensorMeta, raw: memoryview) -> Output:
    """Raises Internal where the bytes are not those of its shape."""
    array = decode_array(meta.name, meta.dtype, meta.shape, raw)
    plain = Output(name=meta.name, dtype=meta.dtype, shape=meta.shape, nbytes=meta.nbytes)
    numbers = _numbers(meta.dtype, array, raw)
    if numbers is None:
        return plain
    import numpy as np

    finite = numbers[np.isfinite(numbers)]
    return msgspec.structs.replace(
        plain,
        minimum=float(finite.min()) if finite.size else None,
        maximum=float(finite.max()) if finite.size else None,
        nonfinite=int(numbers.size - finite.size),
    )


def _numbers(word: str, array: Any, raw: memoryview) -> Any:
    """As numpy can compare them; None for texts, truths and types that nothing here can widen."""
    import numpy as np

    if word == "BF16":  # the upper half of an FP32
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    if word in _WIDENED:
        return array.astype(_WIDENED[word], copy=False).ravel()
    return array.ravel() if array.dtype.kind in "iu" and "INT" in word else None


def _bound(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.6g}"
