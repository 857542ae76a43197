"""A result in binary: a FlatBuffers table with its length before it, then the tensors.

The schema is docs/protocol/result.fbs. Tensors lie outside of the table, one after the other, each
at a multiple of 64 bytes; the table names their places. So they are sent without a copy, mapped
from a file, and keep every bit: NaN, infinities, BF16. Values are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final, get_args

from msgspec import Struct

from din.domain.request import AttemptRecord, PrecisionClass, Span, SpanKind, Trace, TraceStep
from din.domain.result import Result
from din.domain.tensor import (
    BYTES,
    DTYPE_BYTES,
    RANK_MAX,
    TENSORS_MAX,
    TensorMeta,
    aligned,
    nbytes_of,
    offsets_of,
)
from din.errors import UsageError
from din.wire.flat import (
    BOOL,
    DOUBLE,
    DOUBLE_OR_NONE,
    INT,
    UINT,
    ULONG,
    FlatReader,
    Layout,
    Longs,
    Nested,
    Rows,
    Text,
    Texts,
    encode_flat,
)
from din.wire.frame import body_parts

IDENTIFIER: Final = b"DINR"
ROWS_MAX: Final = 100_000
"""Steps, bars or attempts of one request."""
NODES_MAX: Final = 4096
"""Of one attempt."""
ELEMENTS_MAX: Final = 2**48
"""Of a tensor, its zeros taken for ones: what has no bytes could claim any shape."""
WHAT: Final = "the result"


class TensorPlace(Struct, frozen=True, kw_only=True):
    """One tensor as the table names it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    """From the start of the tensors, which is the first multiple of 64 behind the table."""
    nbytes: int


TENSOR: Final[Layout] = {
    "name": Text(is_required=True),
    "datatype": Text(is_required=True),
    "shape": Longs(RANK_MAX),
    "offset": ULONG,
    "nbytes": ULONG,
}
STEP: Final[Layout] = {
    "node": Text(),
    "phase": Text(),
    "slice_index": INT,
    "latency_ms": DOUBLE,
    "queue_ms": DOUBLE,
    "wait_ms": DOUBLE,
    "gpu_util": DOUBLE_OR_NONE,
}
SPAN: Final[Layout] = {
    "node": Text(),
    "phase": Text(),
    "slice_index": INT,
    "kind": Text(is_required=True),
    "start_ms": DOUBLE,
    "duration_ms": DOUBLE,
    "compressed_bytes": ULONG,
    "uncompressed_bytes": ULONG,
}
ATTEMPT: Final[Layout] = {
    "attempt": UINT,
    "nodes": Texts(NODES_MAX),
    "outcome": Text(),
    "duration_ms": DOUBLE,
}
TRACE: Final[Layout] = {
    "started_at": Text(),
    "duration_ms": DOUBLE,
    "path": Text(),
    "precision": Text(is_required=True),
    "error": Text(),
    "spans": Rows(SPAN, Span, ROWS_MAX),
    "attempts": Rows(ATTEMPT, AttemptRecord, ROWS_MAX),
    "isolated_for": Text(),
}
RESULT: Final[Layout] = {
    "request_id": Text(is_required=True),
    "model_id": Text(is_required=True),
    "version": Text(),
    "status": Text(),
    "is_adapted": BOOL,
    "outputs": Rows(TENSOR, TensorPlace, TENSORS_MAX),
    "execution_trace": Rows(STEP, TraceStep, ROWS_MAX),
    "trace": Nested(TRACE),
}


def encode_result(result: Result, views: Sequence[memoryview] = ()) -> list[bytes | memoryview]:
    """The message in pieces: the table, and the tensors as they lie. Raises TooLarge."""
    offsets, _ = offsets_of(result.outputs)
    places = tuple(
        TensorPlace(
            name=meta.name,
            datatype=meta.dtype,
            shape=meta.shape,
            offset=offset,
            nbytes=meta.nbytes,
        )
        for meta, offset in zip(result.outputs, offsets, strict=True)
    )
    fields = {name: getattr(result, name) for name in RESULT} | {"outputs": places}
    table = encode_flat(RESULT, fields, IDENTIFIER)
    parts, _ = body_parts(list(views))
    return [table + bytes(aligned(len(table)) - len(table)), *parts]


def decode_result(
    data: bytes | bytearray | memoryview, what: str = WHAT
) -> tuple[Result, tuple[memoryview, ...]]:
    """A message of whoever, and its tensors as views of it. Raises UsageError or TooLarge."""
    view = memoryview(data).cast("B").toreadonly()
    reader = FlatReader(view, IDENTIFIER, what)
    fields = reader.fields(RESULT)
    start = aligned(reader.end)
    places: tuple[TensorPlace, ...] = fields["outputs"]
    for place in places:
        _check_place(place, len(view) - start, what)
    fields["outputs"] = tuple(
        TensorMeta(each.name, each.datatype, each.shape, each.nbytes) for each in places
    )
    fields["trace"] = _trace_of(fields, what)
    found = tuple(view[start + each.offset :][: each.nbytes] for each in places)
    return Result(**fields), found


def _check_place(place: TensorPlace, body_nbytes: int, what: str) -> None:
    shown = f"{what} cannot be read: tensor {place.name!r:.80}"
    if place.datatype != BYTES and place.datatype not in DTYPE_BYTES:
        raise UsageError(f"{shown} is {place.datatype!r:.40}, which is no datatype known here")
    if min(place.shape, default=0) < 0 or prod(size or 1 for size in place.shape) > ELEMENTS_MAX:
        raise UsageError(f"{shown} has shape {list(place.shape)}")
    if place.datatype != BYTES and place.nbytes != nbytes_of(place.datatype, place.shape):
        raise UsageError(
            f"{shown} of shape {list(place.shape)} {place.datatype} has {place.nbytes} bytes"
        )
    if place.offset + place.nbytes > max(body_nbytes, 0):
        raise UsageError(
            f"{shown} ends at byte {place.offset + place.nbytes} of {max(body_nbytes, 0)}",
            hint="it was cut short: fetch it again from where it comes",
        )


def _trace_of(fields: dict[str, Any], what: str) -> Trace | None:
    more: dict[str, Any] | None = fields["trace"]
    if more is None:
        return None
    kinds = {span.kind for span in more["spans"]}
    for said, known in (({more["precision"]}, PrecisionClass), (kinds, SpanKind)):
        unknown = said.difference(get_args(known))
        if unknown:
            raise UsageError(
                f"{what} cannot be read: {min(unknown)!r:.40} is none of {get_args(known)}",
                hint="a newer version of DIN wrote it",
            )
    same = ("request_id", "model_id", "version", "status", "execution_trace")
    return Trace(**{name: fields[name] for name in same}, **more)
