"""Tensors as the Open Inference Protocol carries them: JSON values, or raw bytes after the JSON.

JSON has no NaN and no Infinity. Sending one to a server without the binary extension is a
BadTensor; a null among the floats of an answer is read as NaN, which is how servers write all
three of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType

from din.backends.contract import NUMPY_TYPES, Array
from din.domain.malformed import MALFORMED
from din.domain.tensor import BYTES, BYTES_ELEMENTS_MAX, DTYPE_BYTES, RANK_MAX, TensorSpec
from din.errors import BadTensor, ExecutionFailed

_FLOATS: Final = ("FP16", "FP32", "FP64")
_RAW_ONLY: Final = ("BF16", "FP8")


class OutputHead(Struct):
    """One output in the JSON part of an answer."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: Any = UNSET

    @property
    def raw_bytes(self) -> int | None:
        """How many bytes follow the JSON part for it; None = its values are in the JSON."""
        size = (self.parameters or {}).get("binary_data_size")
        return size if isinstance(size, int) and not isinstance(size, bool) else None


class AnswerHead(Struct):
    """The JSON part of an answer."""

    outputs: list[OutputHead]


_DECODER: Final = msgspec.json.Decoder(AnswerHead)


def encode_request(
    inputs: Mapping[str, Array],
    specs: Sequence[TensorSpec],
    wanted: Sequence[str],
    parameters: Mapping[str, Any],
    *,
    is_binary: bool,
) -> tuple[bytes, list[memoryview | bytes]]:
    """The JSON part and what follows it. Raises BadTensor for what JSON cannot say."""
    entries: list[dict[str, Any]] = []
    raw: list[memoryview | bytes] = []
    for spec in specs:
        array = inputs[spec.name]
        entry: dict[str, Any] = {
            "name": spec.name,
            "shape": list(array.shape),
            "datatype": spec.dtype,
        }
        if is_binary:
            data = _bytes_of(spec, array)
            entry["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            entry["data"] = _values_of(spec, array)
        entries.append(entry)
    outputs = [
        {"name": name, "parameters": {"binary_data": True}} if is_binary else {"name": name}
        for name in wanted
    ]
    body: dict[str, Any] = {"inputs": entries, "outputs": outputs}
    if parameters:
        body["parameters"] = dict(parameters)
    return msgspec.json.encode(body), raw


def decode_head(head: bytes | bytearray) -> AnswerHead:
    """The JSON part of an answer. Raises ExecutionFailed."""
    try:
        return _DECODER.decode(head)
    except MALFORMED as error:
        found = _with_nan(head)
        if found is None:
            said = f"the server's answer cannot be read: {error!s:.200}"
            raise ExecutionFailed(said) from None
        return found


def _with_nan(head: bytes | bytearray) -> AnswerHead | None:
    """Some servers write NaN and Infinity as they stand, which is no JSON; None when it is not
    that."""
    try:
        return msgspec.convert(json.loads(head), AnswerHead)
    except (ValueError, *MALFORMED):
        return None


def check_outputs(
    head: AnswerHead, specs: Mapping[str, TensorSpec], wanted: Sequence[str], nbytes_max: int
) -> dict[str, OutputHead]:
    """What was asked for, by name. Raises ExecutionFailed for an answer that is none to it."""
    found = {each.name: each for each in head.outputs}
    for name in wanted:
        each, spec = found.get(name), specs[name]
        if each is None:
            raise ExecutionFailed(
                f"the server's answer lacks output {name!r}: it has {', '.join(found) or 'none'}"
            )
        shape = each.shape
        if each.datatype != spec.dtype or len(shape) > RANK_MAX or any(dim < 0 for dim in shape):
            raise ExecutionFailed(
                f"output {name!r} came as {each.datatype} {shape!r:.80} from the server, which "
                f"promised {spec.dtype}"
            )
        if each.datatype == BYTES and prod(shape) > BYTES_ELEMENTS_MAX:
            raise ExecutionFailed(f"output {name!r} came with {prod(shape)} elements")
    sizes = [_nbytes(each) if each.raw_bytes is None else each.raw_bytes for each in head.outputs]
    if min(sizes, default=0) < 0 or sum(sizes) > nbytes_max:
        raise ExecutionFailed(
            f"the server's answer has {sum(sizes)} bytes of tensors; the limit is {nbytes_max}"
        )
    for each in head.outputs:
        size = each.raw_bytes
        is_fixed = each.datatype in DTYPE_BYTES
        if size is not None and is_fixed and size != _nbytes(each):
            raise ExecutionFailed(
                f"output {each.name!r:.80} of shape {each.shape!r:.80} has {size} bytes in the "
                "server's answer"
            )
    return {name: found[name] for name in wanted}


def target_for(each: OutputHead, target: Array | None) -> Array:
    """Where the raw bytes of an output go: the place given for it, if it has that form."""
    dtype, shape = NUMPY_TYPES[each.datatype], tuple(each.shape)
    if target is not None and target.shape == shape and target.flags.c_contiguous:
        return target
    return np.empty(shape, dtype)


def bytes_elements(each: OutputHead, data: memoryview) -> Array:
    """A BYTES output from its raw form. Raises ExecutionFailed."""
    elements = np.empty(prod(each.shape), np.object_)
    end = 0
    for position in range(len(elements)):
        start = end + 4
        end = start + int.from_bytes(data[start - 4 : start], "little")
        if end > len(data):
            raise ExecutionFailed(f"output {each.name!r} ends inside element {position}")
        elements[position] = bytes(data[start:end])
    if end != len(data):
        raise ExecutionFailed(f"output {each.name!r} has {len(data) - end} bytes too many")
    return elements.reshape(each.shape)


def from_values(each: OutputHead) -> Array:
    """An output from its JSON values. Raises ExecutionFailed."""
    if isinstance(each.data, UnsetType) or each.data is None:
        raise ExecutionFailed(f"output {each.name!r} has no data in the server's answer")
    if each.datatype in _RAW_ONLY:
        raise ExecutionFailed(
            f"output {each.name!r} came as JSON, which cannot say {each.datatype}"
        )
    try:
        if each.datatype == BYTES:
            return _texts(each)
        return _numbers(each).reshape(each.shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise ExecutionFailed(
            f"output {each.name!r} of shape {each.shape!r:.80} does not hold such values: "
            f"{error!s:.200}"
        ) from None


def _numbers(each: OutputHead) -> Array:
    dtype = NUMPY_TYPES[each.datatype]
    if each.datatype in _FLOATS:
        return np.array(each.data, dtype)  # null becomes NaN
    found = np.array(each.data)
    with np.errstate(invalid="ignore"):
        exact = found.astype(dtype)
    if not (exact == found).all():
        raise ValueError(f"not all of them are {each.datatype}")
    return exact


def _texts(each: OutputHead) -> Array:
    values = np.array(each.data, dtype=np.object_).reshape(-1)
    elements = np.empty(len(values), np.object_)
    for position, value in enumerate(values):
        if not isinstance(value, str):
            raise TypeError(f"element {position} is no text")
        elements[position] = value.encode()
    return elements.reshape(each.shape)


def _nbytes(each: OutputHead) -> int:
    """A BYTES tensor has a length of 4 bytes for each element at least."""
    return DTYPE_BYTES.get(each.datatype, 4) * prod(each.shape)


def _bytes_of(spec: TensorSpec, array: Array) -> memoryview | bytes:
    if spec.dtype == BYTES:
        return b"".join(
            part for each in array.reshape(-1) for part in (len(each).to_bytes(4, "little"), each)
        )
    whole = np.ascontiguousarray(array)
    return whole.reshape(-1).view(np.uint8).data if whole.size else b""


def _values_of(spec: TensorSpec, array: Array) -> list[Any]:
    if spec.dtype == BYTES:
        try:
            return [each.decode() for each in array.reshape(-1)]
        except UnicodeDecodeError:
            raise BadTensor(
                f"input {spec.name!r} has bytes that are no UTF-8 text, and the model's server "
                "takes JSON only",
                hint="send text, or use a server with the binary tensor extension",
            ) from None
    if spec.dtype in _RAW_ONLY:
        raise BadTensor(
            f"input {spec.name!r} is {spec.dtype}, which JSON cannot say, and the model's server "
            "takes JSON only",
            hint="use a server with the binary tensor extension",
        )
    if spec.dtype in _FLOATS and not np.isfinite(array).all():
        raise BadTensor(
            f"input {spec.name!r} has NaN or infinite values, and the model's server takes JSON, "
            "which has none",
            hint="send finite values, or use a server with the binary tensor extension",
        )
    return array.reshape(-1).tolist()
