"""Results in their binary form: from a gateway, into files and out of them."""

from __future__ import annotations

import os
from typing import Final

from din.client.arrays import decode_array, encode_array, plain_values
from din.client.result import Inference
from din.domain.request import Trace
from din.domain.result import Result
from din.domain.tensor import TensorMeta
from din.errors import Internal, TooLarge, UsageError
from din.wire.result import decode_result, encode_result

FILE_BYTES_MAX: Final = 1024 * 1024 * 1024


def read_result(path: str | os.PathLike[str]) -> Inference:
    """What `din infer --output FILE.dinr` or a gateway wrote. Raises UsageError or TooLarge."""
    return inference_of(read_bytes(path), os.fspath(path))


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """What `din trace show --save FILE.dinr` wrote. Raises UsageError or TooLarge."""
    shown = os.fspath(path)
    trace = decode_result(read_bytes(path), shown)[0].trace
    if trace is None:
        raise UsageError(
            f"{shown} holds the result of a request, and no trace",
            hint="`din trace show FILE` shows it; din.read_result() in Python gives its tensors",
        )
    return trace


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """A file of limited size. Raises UsageError or TooLarge."""
    shown = f"{os.fspath(path)!r:.200}"
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"file {shown} cannot be read: {reason}",
            hint="give the path of a file that exists and that you may read",
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise TooLarge(f"file {shown} is over the limit of {FILE_BYTES_MAX} bytes")
    return data


def inference_of(data: bytes, what: str) -> Inference:
    """One message of whoever. Raises UsageError or TooLarge."""
    result, views = decode_result(data, what)
    try:
        outputs = {
            meta.name: decode_array(meta.name, meta.dtype, meta.shape, view)
            for meta, view in zip(result.outputs, views, strict=True)
        }
    except Internal as error:
        raise UsageError(f"{what} cannot be read: {error}") from None
    plain = {
        meta.name: plain_values(outputs[meta.name], meta.dtype) if result.is_adapted else None
        for meta in result.outputs
    }
    return Inference(
        request_id=result.request_id,
        model_id=result.model_id,
        version=result.version,
        result=plain if result.is_adapted else dict(outputs),
        outputs=outputs,
        execution_trace=result.execution_trace,
        is_adapted=result.is_adapted,
    )


def encode_inference(answer: Inference) -> list[bytes | memoryview]:
    """The message in pieces. Raises BadTensor or TooLarge."""
    metas: list[TensorMeta] = []
    views: list[memoryview] = []
    for name, array in answer.outputs.items():
        word, raw = encode_array(name, array)
        metas.append(TensorMeta(name, word, array.shape, len(raw)))
        views.append(memoryview(raw))
    result = Result(
        request_id=answer.request_id,
        model_id=answer.model_id,
        version=answer.version,
        is_adapted=answer.is_adapted,
        outputs=tuple(metas),
        execution_trace=answer.execution_trace,
    )
    return encode_result(result, views)
