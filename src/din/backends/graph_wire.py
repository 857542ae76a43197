"""The little of ONNX's wire form (protobuf) that a probe needs: the nodes of the top graph by name,
and more outputs for a graph. Workers do not import `onnx`, and weights are stepped over unread.

Messages that are written one after the other merge, and repeated fields are joined: a model with a
few bytes behind it that say `graph { output {...} }` has more outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from din.errors import BadModel

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.node and .output, NodeProto.output,
# .name and .op_type, ValueInfoProto.name.
_GRAPH: Final = 7
_NODE: Final = 1
_OUTPUT: Final = 12
_NODE_OUTPUT: Final = 2
_NODE_NAME: Final = 3
_NODE_KIND: Final = 4
_VALUE_NAME: Final = 1

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
    return tuple(
        _text(name)
        for number, graph in _fields(memoryview(model))
        if number == _GRAPH
        for inner, body in _fields(graph)
        if inner == _OUTPUT
        for innermost, name in _fields(body)
        if innermost == _VALUE_NAME
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
            outputs.append(_text(value))
        elif number == _NODE_NAME:
            name = _text(value)
        elif number == _NODE_KIND:
            kind = _text(value)
    return GraphNode(name, kind, tuple(outputs))


def _text(value: memoryview) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise BadModel(f"a name in the graph is not UTF-8: {error.reason}") from None


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(number, content) of each field that holds bytes; the others are stepped over."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _BYTES:
            size, place = _varint(message, place)
            if size > end - place:
                raise _broken(f"a field of {size} bytes reaches over the end")
            yield key >> 3, message[place : place + size]
            place += size
        elif kind == _VARINT:
            _, place = _varint(message, place)
        elif kind in (_FIXED32, _FIXED64):
            place += 4 if kind == _FIXED32 else 8
        else:
            raise _broken(f"a field has wire type {kind}")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for count in range(VARINT_BYTES_MAX):
        if place + count >= len(message):
            raise _broken("it ends within a number")
        byte = message[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise _broken("a number is too long")


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | _BYTES) + _number(len(content)) + content


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _broken(what: str) -> BadModel:
    return BadModel(f"the model file is damaged: {what}", hint="export or upload the model again")
