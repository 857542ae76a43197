"""Which files beside it an ONNX model names. Needs no library that knows ONNX, and reads no weight.

The locations are text of a stranger: whoever opens such a file confines it to the model's folder.
"""

from __future__ import annotations

from typing import Final

from din.domain.model import EXTERNAL_FILES_MAX
from din.errors import BadModel, TooLarge
from din.slicing.fields import BYTES, fields_of

LOCATION_BYTES_MAX: Final = 4096
_KEY: Final = b"location"

# Numbers of onnx.proto: what may hold a tensor, and in which fields.
_GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _FUNCTION, _ENTRY = range(1, 8)
_MODEL: Final = 0
_HOLDS: Final[dict[int, dict[int, int]]] = {
    _MODEL: {7: _GRAPH, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
    _TENSOR: {13: _ENTRY},
}


def external_locations(data: memoryview) -> tuple[str, ...]:
    """The locations of weights that lie elsewhere, each once, in order of text. Raises BadModel
    for what is no message of protobuf, TooLarge over EXTERNAL_FILES_MAX."""
    found: set[str] = set()
    pending = [(_MODEL, 0, len(data))]
    while pending:
        kind, start, end = pending.pop()
        if kind == _ENTRY:
            location = _location(data, start, end)
            if location:
                found.add(location)
                _check_count(found)
            continue
        holds = _HOLDS[kind]
        for number, wire_type, _, value, stop in fields_of(data, start, end):
            if wire_type == BYTES and number in holds:
                pending.append((holds[number], value, stop))
    return tuple(sorted(found))


def _check_count(found: set[str]) -> None:
    if len(found) > EXTERNAL_FILES_MAX:
        raise TooLarge(
            f"the model names more than {EXTERNAL_FILES_MAX} files of weights",
            hint="save the weights in one: onnx.save_model(..., all_tensors_to_one_file=True)",
        )


def _location(data: memoryview, start: int, end: int) -> str:
    key = value = b""
    for number, wire_type, _, at, stop in fields_of(data, start, end):
        if wire_type == BYTES and number in (1, 2):
            if stop - at > LOCATION_BYTES_MAX:
                raise BadModel(
                    f"an entry of external data has {stop - at} bytes",
                    hint=f"locations have at most {LOCATION_BYTES_MAX}; export the model again",
                )
            if number == 1:
                key = bytes(data[at:stop])
            else:
                value = bytes(data[at:stop])
    if key != _KEY:
        return ""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadModel(
            f"the location {value[:80]!r} of weights is not UTF-8 ({error.reason})",
            hint="export the model again",
        ) from None
