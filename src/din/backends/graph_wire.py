"""The little of ONNX's wire form (protobuf) that workers need: the nodes of the top graph by name,
its inputs and outputs, more outputs for a graph, and weights put back into the model. Workers do
not import `onnx`.

Messages that are written one after the other merge, and repeated fields are joined: a model with a
few bytes behind it that say `graph { output {...} }` has more outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from din.errors import BadModel

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.node, .initializer, .input and .output,
# NodeProto.output, .name and .op_type, ValueInfoProto.name, TensorProto.name, .raw_data,
# .external_data and .data_location, StringStringEntryProto.key and .value.
_GRAPH: Final = 7
_NODE: Final = 1
_INITIALIZER: Final = 5
_INPUT: Final = 11
_OUTPUT: Final = 12
_NODE_OUTPUT: Final = 2
_NODE_NAME: Final = 3
_NODE_KIND: Final = 4
_VALUE_NAME: Final = 1
_TENSOR_NAME: Final = 8
_RAW_DATA: Final = 9
_EXTERNAL_DATA: Final = 13
_DATA_LOCATION: Final = 14
_KEY, _VALUE = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX: Final = 10


class GraphNode(NamedTuple):
    """One operator of the top graph."""

    name: str
    kind: str
    outputs: tuple[str, ...]
    """With `""` where an optional one is left out."""


def nodes_of(model: bytes | memoryview) -> tuple[GraphNode, ...]:
    """The operators of the top graph in the order of the file. Raises BadModel."""
    return tuple(
        _node(body)
        for number, graph in _fields(memoryview(model))
        if number == _GRAPH
        for inner, body in _fields(graph)
        if inner == _NODE
    )


def outputs_of(model: bytes | memoryview) -> tuple[str, ...]:
    """Names of the graph's outputs. Raises BadModel."""
    return _names(model, _OUTPUT, _VALUE_NAME)


def inputs_of(model: bytes | memoryview) -> tuple[str, ...]:
    """Names of the graph's inputs that no weight fills. Raises BadModel."""
    weights = frozenset(_names(model, _INITIALIZER, _TENSOR_NAME))
    return tuple(each for each in _names(model, _INPUT, _VALUE_NAME) if each not in weights)


def with_weights(model: bytes, weights: Mapping[str, memoryview]) -> bytes:
    """The model with the data of its tensors in it, for engines that know files only where paths
    lead to them. Raises BadModel for data that `weights` does not hold."""
    if not weights:
        return model
    parts: list[bytes | memoryview] = []
    for number, content, whole in spans(memoryview(model)):
        if number == _GRAPH and content is not None:
            graph = [
                _field(_INITIALIZER, _filled(inner, weights))
                if name == _INITIALIZER and inner is not None
                else span
                for name, inner, span in spans(content)
            ]
            parts.append(_number(_GRAPH << 3 | _BYTES) + _number(sum(map(len, graph))))
            parts += graph
        else:
            parts.append(whole)
    return b"".join(parts)


def _filled(tensor: memoryview, weights: Mapping[str, memoryview]) -> bytes | memoryview:
    """One tensor with its data."""
    place: dict[str, str] = {}
    kept: list[bytes | memoryview] = []
    name = ""
    for number, content, whole in spans(tensor):
        if number == _EXTERNAL_DATA and content is not None:
            entry = {key: text_of(text) for key, text in _fields(content)}
            place[entry.get(_KEY, "")] = entry.get(_VALUE, "")
        elif number != _DATA_LOCATION:
            kept.append(whole)
            if number == _TENSOR_NAME and content is not None:
                name = text_of(content)
    if not place:
        return tensor
    data = weights.get(place.get("location", ""))
    offset, length = place.get("offset", "0"), place.get("length", "")
    if data is None or not offset.isdecimal() or not (length or "0").isdecimal():
        raise BadModel(f"the data of {name!r} are not among the files of the slice")
    end = int(offset) + int(length) if length else len(data)
    if end > len(data):
        raise BadModel(f"the data of {name!r} reach to {end}, over the {len(data)} of their file")
    return b"".join((*kept, _field(_RAW_DATA, data[int(offset) : end])))


def _names(model: bytes | memoryview, kind: int, field: int) -> tuple[str, ...]:
    return tuple(
        text_of(name)
        for number, graph in _fields(memoryview(model))
        if number == _GRAPH
        for inner, body in _fields(graph)
        if inner == kind
        for innermost, name in _fields(body)
        if innermost == field
    )


def with_outputs(model: bytes, names: Iterable[str]) -> bytes:
    """The model with these values as outputs too, where they are none already; their types are
    found by the engine. Raises BadModel."""
    known = set(outputs_of(model))
    values = b"".join(
        _field(_OUTPUT, _field(_VALUE_NAME, name.encode()))
        for name in dict.fromkeys(names)
        if name not in known
    )
    return model + _field(_GRAPH, values) if values else model


def _node(body: memoryview) -> GraphNode:
    name, kind = "", ""
    outputs: list[str] = []
    for number, value in _fields(body):
        if number == _NODE_OUTPUT:
            outputs.append(text_of(value))
        elif number == _NODE_NAME:
            name = text_of(value)
        elif number == _NODE_KIND:
            kind = text_of(value)
    return GraphNode(name, kind, tuple(outputs))


def text_of(value: memoryview) -> str:
    """What a field says. Raises BadModel for what is no UTF-8."""
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise BadModel(f"a name in the graph is not UTF-8: {error.reason}") from None


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, content) of each field that holds bytes; the others are stepped over."""
    for number, content, _ in spans(message):
        if content is not None:
            yield number, content


def spans(message: memoryview) -> Iterator[tuple[int, memoryview | None, memoryview]]:
    """(number, content, the field as it stands) of every field; content None = it holds no
    bytes. Raises BadModel."""
    place, end = 0, len(message)
    while place < end:
        begin = place
        key, place = varint(message, place)
        kind = key & 7
        if kind == _BYTES:
            size, place = varint(message, place)
            if size > end - place:
                raise _broken(f"a field of {size} bytes reaches over the end")
            content = message[place : place + size]
            place += size
            yield key >> 3, content, message[begin:place]
            continue
        elif kind == _VARINT:
            _, place = varint(message, place)
        elif kind in (_FIXED32, _FIXED64):
            place += 4 if kind == _FIXED32 else 8
        else:
            raise _broken(f"a field has wire type {kind}")
        yield key >> 3, None, message[begin:place]


def varint(message: memoryview, place: int) -> tuple[int, int]:
    """A number, and where it ends. Raises BadModel."""
    value = 0
    for count in range(VARINT_BYTES_MAX):
        if place + count >= len(message):
            raise _broken("it ends within a number")
        byte = message[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise _broken("a number is too long")


def _field(number: int, content: bytes | memoryview) -> bytes:
    return b"".join((_number(number << 3 | _BYTES), _number(len(content)), content))


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _broken(what: str) -> BadModel:
    return BadModel(f"the model file is damaged: {what}", hint="export or upload the model again")
