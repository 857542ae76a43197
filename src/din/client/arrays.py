"""numpy arrays to the Open Inference Protocol's bytes and back. The only file here with numpy.

Bytes on the wire are row-major and little-endian, without stride or padding: whatever else an
array is (transposed, strided, byte-swapped) it is copied into that form, values unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from din.domain.tensor import BYTES, nbytes_of
from din.errors import BadTensor, Internal

Array = NDArray[Any]
NUMPY_TYPES: Final[dict[str, str]] = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
SHORTEST_COUNT_MAX: Final = 4096
"""As the gateway does in JSON: up to here FP32 values are the shortest decimals that are them."""
_WORDS: Final = {np.dtype(each).newbyteorder("="): word for word, each in NUMPY_TYPES.items()}


class Encoded(NamedTuple):
    """A request body in pieces, the JSON part first."""

    pieces: tuple[bytes | memoryview, ...]
    json_nbytes: int

    @property
    def nbytes(self) -> int:
        """Size of the whole body."""
        return sum(len(each) for each in self.pieces)


def encode_request(
    arrays: Mapping[str, object],
    outputs: Sequence[str],
    request_id: str | None,
    parameters: Mapping[str, object],
) -> Encoded:
    """A request with binary tensors. Raises BadTensor for what has no datatype on the wire."""
    inputs: list[dict[str, object]] = []
    pieces: list[bytes | memoryview] = []
    for name, value in arrays.items():
        array = np.asarray(value)
        word, raw = encode_array(name, array)
        size = len(raw)
        inputs.append(
            {
                "name": name,
                "datatype": word,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": size},
            }
        )
        if size:
            pieces.append(raw)
    body: dict[str, object] = {
        "inputs": inputs,
        "parameters": {"binary_data_output": True, **parameters},
    }
    if request_id is not None:
        body["id"] = request_id
    if outputs:
        body["outputs"] = [{"name": each, "parameters": {"binary_data": True}} for each in outputs]
    head = json.dumps(body).encode()
    return Encoded((head, *pieces), len(head))


def encode_array(name: str, array: Array) -> tuple[str, bytes | memoryview]:
    """Datatype word and bytes of one array; without a copy where it lies right already."""
    if array.dtype.kind in "OSU":
        return BYTES, _encode_elements(name, array)
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        # Types of ml_dtypes: numpy has no byte order for them, the bits are sent as integers.
        word = "BF16" if array.dtype.name == "bfloat16" else "FP8"
        bits = np.ascontiguousarray(array).reshape(array.shape)
        return word, _raw(bits.view("<u2" if word == "BF16" else "u1"))
    word = _WORDS.get(array.dtype.newbyteorder("="))
    if word is None:
        raise BadTensor(
            f"input {name!r} has numpy type {array.dtype}, which has no datatype on the wire",
            hint=f"convert it with .astype() to one of {', '.join(map(str, _WORDS))}",
        )
    return word, _raw(np.asarray(array, dtype=NUMPY_TYPES[word], order="C"))


def _raw(array: Array) -> bytes | memoryview:
    # memoryview.cast refuses views with a zero in their shape.
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def _encode_elements(name: str, array: Array) -> bytes:
    parts: list[bytes] = []
    for index, element in enumerate(cast("list[object]", array.ravel(order="C").tolist())):
        if isinstance(element, str):
            raw = element.encode("utf-8")
        elif isinstance(element, bytes | bytearray):
            raw = bytes(element)
        else:
            raise BadTensor(
                f"input {name!r}: element {index} is {type(element).__name__}, "
                "but BYTES elements are str or bytes",
                hint="build the array with dtype=object from str or bytes",
            )
        parts.append(len(raw).to_bytes(4, "little") + raw)
    return b"".join(parts)


def decode_outputs(outputs: Sequence[Mapping[str, Any]], raw: memoryview) -> dict[str, Array]:
    """Outputs of an answer by name. Raises Internal when sizes do not add up."""
    found: dict[str, Array] = {}
    start = 0
    for each in outputs:
        name, word, shape = str(each["name"]), str(each["datatype"]), tuple(each["shape"])
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[name] = _from_json(word, shape, each.get("data", []))
            continue
        found[name] = decode_array(name, word, shape, raw[start : start + size])
        start += size
    if start != len(raw):
        raise Internal(f"the answer has {len(raw)} bytes of tensors, its header names {start}")
    return found


def _from_json(word: str, shape: tuple[int, ...], data: object) -> Array:
    kind: Any = object if word == BYTES else NUMPY_TYPES[word]
    return np.array(data, dtype=kind).reshape(shape)


def decode_array(name: str, word: str, shape: tuple[int, ...], raw: memoryview) -> Array:
    """One array over the bytes of the answer. Raises Internal when their number is wrong."""
    if word == BYTES:
        return _decode_elements(name, shape, raw)
    if len(raw) != nbytes_of(word, shape):
        raise Internal(f"output {name!r} of shape {list(shape)} {word} came with {len(raw)} bytes")
    if word in NUMPY_TYPES:
        return np.frombuffer(raw, dtype=NUMPY_TYPES[word]).reshape(shape)
    return _exotic(word, raw).reshape(shape)


def _exotic(word: str, raw: memoryview) -> Array:
    """BF16 and FP8: as their ml_dtypes types where that is installed, else as their bits."""
    bits: Array = np.frombuffer(raw, dtype="<u2" if word == "BF16" else "u1")
    try:
        import ml_dtypes
    except ImportError:
        return bits
    kind: Any = ml_dtypes.bfloat16 if word == "BF16" else ml_dtypes.float8_e4m3fn
    return bits.view(kind)


def _decode_elements(name: str, shape: tuple[int, ...], raw: memoryview) -> Array:
    elements: list[bytes] = []
    start = 0
    while start < len(raw):
        size = int.from_bytes(raw[start : start + 4], "little")
        end = start + 4 + size
        if end > len(raw):
            raise Internal(f"output {name!r}: BYTES element {len(elements)} is cut short")
        elements.append(bytes(raw[start + 4 : end]))
        start = end
    if len(elements) != prod(shape):
        raise Internal(f"output {name!r} of shape {list(shape)} came with {len(elements)} elements")
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def plain_values(array: Array, word: str) -> Any:
    """Values as JSON would hold them, but for NaN and infinities, which stay."""
    if word == BYTES:
        texts = np.empty(array.size, dtype=object)
        elements = cast("list[bytes]", array.ravel().tolist())
        texts[:] = [each.decode("utf-8", "replace") for each in elements]
        return texts.reshape(array.shape).tolist()
    if word == "FP32" and array.size <= SHORTEST_COUNT_MAX:
        return array.astype("U").astype(np.float64).tolist()
    return array.tolist()
