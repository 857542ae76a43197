"""The skeleton of an ONNX file: its bytes without those of large weights, which are left where they
lie. Found by a walk over the wire form: a model of several GB costs what its graph costs.

Only initialisers of the top graph and the values of its Constant nodes are taken out: engines look
nowhere else for weights outside of the file. What subgraphs, functions and other attributes hold
stays inside, up to a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from din.errors import TooLarge
from din.slicing.fields import BYTES, VARINT, fields_of, head_of, varint

WEIGHT_BYTES_KEPT: Final = 1024
"""Smaller tensors stay inside: they may be shapes, axes or sizes, which inference wants to see."""

SKELETON_BYTES_MAX: Final = 256 * 1024**2
"""Of what is left: it is parsed and copied."""

REFERENCE_KEY: Final = "din.weight"
"""A tensor that was taken out refers to its place by an entry of external data with this key."""

Span = tuple[int, int]
"""Where bytes begin in the file and how many they are."""

_Pieces = list[bytes | memoryview]
_Rewrite = Callable[[int, int], _Pieces | None]

# Numbers of onnx.proto.
_MODEL_GRAPH: Final = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_OP_TYPE, _NODE_ATTRIBUTE = 4, 5
_ATTRIBUTE_T: Final = 5
_TENSOR_DATA_TYPE, _TENSOR_RAW = 2, 9
_TENSOR_EXTERNAL, _TENSOR_LOCATION = 13, 14
_TENSOR_TYPED: Final = frozenset({4, 5, 6, 7, 10, 11})
_RAW_ALIKE: Final = {4: (1, 14), 10: (11, 15)}
"""Packed float_data and double_data hold what raw data would, for these element types."""
_IS_EXTERNAL: Final = b"\x70\x01"


@dataclass(frozen=True)
class Skeleton:
    """A model without its weights, and where those are; references count up from 0."""

    data: bytes
    weights: tuple[Span, ...]


def skeleton_of(data: memoryview) -> Skeleton:
    """Take the large weights out of an ONNX file. Raises BadModel for what is no message of
    protobuf, TooLarge when too much is left."""
    walk = _Walk(data)
    pieces = _rewritten(data, 0, len(data), {_MODEL_GRAPH: walk.graph})
    made = data if pieces is None else b"".join(pieces)
    if len(made) > SKELETON_BYTES_MAX:
        raise TooLarge(
            f"the graph without its large weights has {len(made)} bytes, more than "
            f"{SKELETON_BYTES_MAX}",
            hint="weights belong into initialisers of the top graph, as raw data: those in "
            "subgraphs, functions and attributes count as graph",
        )
    return Skeleton(bytes(made), tuple(walk.weights))


def _rewritten(
    data: memoryview, start: int, end: int, rewrites: dict[int, _Rewrite]
) -> _Pieces | None:
    """A message with some of its large parts written anew; None when nothing changes."""
    pieces: _Pieces = []
    unchanged = start
    for number, kind, first, value, stop in fields_of(data, start, end):
        if stop - value <= WEIGHT_BYTES_KEPT or kind != BYTES or number not in rewrites:
            continue
        inner = rewrites[number](value, stop)
        if inner is not None:
            pieces.append(data[unchanged:first])
            pieces.append(head_of(number, sum(map(len, inner))))
            pieces += inner
            unchanged = stop
    if not pieces:
        return None
    pieces.append(data[unchanged:end])
    return pieces


class _Walk:
    """Over one file. Each step is a message that may hold a weight."""

    def __init__(self, data: memoryview) -> None:
        self.weights: list[Span] = []
        self._data = data

    def graph(self, start: int, end: int) -> _Pieces | None:
        """The top graph."""
        steps: dict[int, _Rewrite] = {_GRAPH_NODE: self._node, _GRAPH_INITIALIZER: self._tensor}
        return _rewritten(self._data, start, end, steps)

    def _node(self, start: int, end: int) -> _Pieces | None:
        op_type = b""
        for number, kind, _, value, stop in fields_of(self._data, start, end):
            if number == _NODE_OP_TYPE and kind == BYTES:
                op_type = bytes(self._data[value : min(stop, value + 16)])
        if op_type != b"Constant":
            return None
        return _rewritten(self._data, start, end, {_NODE_ATTRIBUTE: self._attribute})

    def _attribute(self, start: int, end: int) -> _Pieces | None:
        numbers = [number for number, *_ in fields_of(self._data, start, end)]
        if numbers.count(_ATTRIBUTE_T) != 1:
            return None  # protobuf makes one tensor of several
        return _rewritten(self._data, start, end, {_ATTRIBUTE_T: self._tensor})

    def _tensor(self, start: int, end: int) -> _Pieces | None:
        element, found = 0, None
        for field in fields_of(self._data, start, end):
            number, kind, _, value, _ = field
            if number == _TENSOR_DATA_TYPE and kind == VARINT:
                element = varint(self._data, value, end)[0]
            elif number in (_TENSOR_EXTERNAL, _TENSOR_LOCATION):
                return None
            elif number == _TENSOR_RAW or number in _TENSOR_TYPED:
                if found is not None:
                    return None  # protobuf joins them, or takes the last
                found = field
        if found is None:
            return None
        number, kind, first, value, stop = found
        is_plain = number == _TENSOR_RAW or element in _RAW_ALIKE.get(number, ())
        if kind != BYTES or not is_plain or stop - value <= WEIGHT_BYTES_KEPT:
            return None
        self.weights.append((value, stop - value))
        reference = _reference(len(self.weights) - 1)
        return [self._data[start:first], self._data[stop:end], reference]


def _reference(ordinal: int) -> bytes:
    entry = b"".join(
        head_of(number, len(text)) + text
        for number, text in ((1, REFERENCE_KEY.encode()), (2, str(ordinal).encode()))
    )
    return head_of(_TENSOR_EXTERNAL, len(entry)) + entry + _IS_EXTERNAL
