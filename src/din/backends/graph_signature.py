"""What an ONNX graph takes and gives, read from its wire form: for engines that do not say it
themselves. Workers do not import `onnx`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from din.backends.graph_wire import inputs_of, outputs_of, spans, text_of, varint
from din.domain.tensor import Dim, TensorSpec, is_symbol
from din.errors import BadModel

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.input and .output, ValueInfoProto.name
# and .type, TypeProto.tensor_type, its elem_type and shape, TensorShapeProto.dim, its dim_value and
# dim_param.
_GRAPH: Final = 7
_SIDES: Final = (11, 12)
_NAME, _TYPE = 1, 2
_TENSOR: Final = 1
_ELEMENT, _SHAPE = 1, 2
_DIM: Final = 1
_VALUE, _SYMBOL = 1, 2

_WORDS: Final[dict[int, str]] = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
    16: "BF16",
}


class Signature(NamedTuple):
    """In the order of the graph."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def signature_of(model: bytes) -> Signature:
    """Raises BadModel for damage, and for values that are no tensors of numbers."""
    view = memoryview(model)
    known = {spec.name: spec for spec in _specs(view)}
    try:
        taken = tuple(known[name] for name in inputs_of(view))
        return Signature(taken, tuple(known[name] for name in outputs_of(view)))
    except KeyError as error:
        raise BadModel(f"the graph does not say what {error.args[0]!r} is") from None


def _specs(model: memoryview) -> Iterator[TensorSpec]:
    for number, graph, _ in spans(model):
        if number != _GRAPH or graph is None:
            continue
        for side, value, _ in spans(graph):
            if side in _SIDES and value is not None:
                yield _spec(value)


def _spec(value: memoryview) -> TensorSpec:
    name, kind = "", memoryview(b"")
    for number, content, _ in spans(value):
        if number == _NAME and content is not None:
            name = text_of(content)
        elif number == _TYPE and content is not None:
            kind = content
    tensor = _inner(kind, _TENSOR)
    element, shape = 0, None
    for number, content, whole in spans(tensor or memoryview(b"")):
        if number == _ELEMENT and content is None:
            element = _number_in(whole)
        elif number == _SHAPE and content is not None:
            shape = tuple(
                _dim(dim) for key, dim, _ in spans(content) if key == _DIM and dim is not None
            )
    if element not in _WORDS:
        raise BadModel(
            f"{name!r} is no tensor of numbers that this engine can be given",
            hint="place the slice on onnxruntime",
        )
    return TensorSpec(name, _WORDS[element], shape)


def _dim(dim: memoryview) -> Dim:
    for number, content, whole in spans(dim):
        if number == _VALUE and content is None:
            value = _number_in(whole)
            return value if value < 1 << 31 else None
        if number == _SYMBOL and content is not None:
            symbol = text_of(content)
            return symbol if is_symbol(symbol) else None
    return None


def _inner(message: memoryview, wanted: int) -> memoryview | None:
    return next((content for number, content, _ in spans(message) if number == wanted), None)


def _number_in(field: memoryview) -> int:
    _, place = varint(field, 0)
    return varint(field, place)[0]
