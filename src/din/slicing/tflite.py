"""What a .tflite file takes and gives, and how much memory it may need. Nothing of it is run."""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

from din.domain.model import MODEL_FILE
from din.domain.support import Need, Needs
from din.domain.tensor import DTYPE_BYTES, RANK_MAX, Dim, TensorSpec
from din.errors import BadModel
from din.slicing.flat import Table, root_of
from din.slicing.reading import Read, check_names

# Numbers of the fields in LiteRT's schema.
_MODEL_CODES, _MODEL_GRAPHS, _MODEL_BUFFERS = 1, 2, 4
_GRAPH_TENSORS, _GRAPH_INPUTS, _GRAPH_OUTPUTS, _GRAPH_OPERATORS = 0, 1, 2, 3
_TENSOR_SHAPE, _TENSOR_TYPE, _TENSOR_BUFFER, _TENSOR_NAME, _TENSOR_SIGNATURE = 0, 1, 2, 3, 7
_BUFFER_DATA, _BUFFER_SIZE = 0, 2
_OPERATOR_INPUTS, _OPERATOR_OUTPUTS = 1, 2
_CODE_CUSTOM, _CODE_VERSION = 1, 2

_WORDS: Final[dict[int, str]] = {
    0: "FP32",
    1: "FP16",
    2: "INT32",
    3: "UINT8",
    4: "INT64",
    6: "BOOL",
    7: "INT16",
    9: "INT8",
    10: "FP64",
    12: "UINT64",
    15: "UINT32",
    16: "UINT16",
}
"""Element types that DIN carries to LiteRT; text and complex numbers stay inside."""
EDGE_TPU: Final = "edgetpu-custom-op"
"""What the compiler for Coral leaves in a file."""
OPERATOR_PREFIX: Final = "tflite."


class _Tensor(NamedTuple):
    name: str
    kind: int
    shape: tuple[int | None, ...]
    is_stored: bool

    @property
    def nbytes(self) -> int:
        """Of a value that lives while the graph runs; free sizes count as 1."""
        if self.is_stored:
            return 0
        width = DTYPE_BYTES.get(_WORDS.get(self.kind, ""), 4)
        return prod(1 if dim is None else dim for dim in self.shape) * width


def read_tflite(files: dict[str, memoryview]) -> Read:
    """The first graph of a file. Raises BadModel, TooLarge."""
    data = files[MODEL_FILE]
    model = root_of(data)
    graph = next(model.tables(_MODEL_GRAPHS), None)
    if graph is None:
        raise BadModel("the file holds no graph", hint="convert the model again")
    stored = [_is_stored(each) for each in model.tables(_MODEL_BUFFERS)]
    tensors = [_tensor(each, stored) for each in graph.tables(_GRAPH_TENSORS)]
    inputs = _specs(graph, _GRAPH_INPUTS, tensors, "input")
    outputs = _specs(graph, _GRAPH_OUTPUTS, tensors, "output")
    operators = [_live_bytes(each, tensors) for each in graph.tables(_GRAPH_OPERATORS)]
    if not operators or not outputs:
        raise BadModel("the graph in the file makes nothing", hint="convert the model again")
    custom = tuple(_custom(model))
    return Read(
        inputs=inputs,
        outputs=outputs,
        operators=len(operators),
        weights_bytes=len(data),
        peak_bytes=max(operators),
        needs=Needs(operators=custom),
        backend="coral" if any(each.operator.endswith(EDGE_TPU) for each in custom) else "litert",
    )


def _is_stored(buffer: Table) -> bool:
    return buffer.length(_BUFFER_DATA) > 0 or buffer.number(_BUFFER_SIZE, "Q") > 1


def _tensor(table: Table, stored: list[bool]) -> _Tensor:
    shape = table.numbers(_TENSOR_SHAPE)
    free = table.numbers(_TENSOR_SIGNATURE) or shape
    name = table.text(_TENSOR_NAME)
    if len(free) != len(shape) or len(shape) > RANK_MAX or min(shape, default=0) < -1:
        raise BadModel(f"tensor {name!r} has the shape {list(shape)}, free {list(free)}")
    buffer = table.number(_TENSOR_BUFFER, "I")
    return _Tensor(
        name,
        table.number(_TENSOR_TYPE, "b"),
        tuple(None if each < 0 else each for each in free),
        is_stored=buffer < len(stored) and stored[buffer],
    )


def _specs(graph: Table, field: int, tensors: list[_Tensor], side: str) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    for number in graph.numbers(field):
        if not 0 <= number < len(tensors):
            raise BadModel(f"an {side} is tensor {number} of {len(tensors)}")
        tensor = tensors[number]
        word = _WORDS.get(tensor.kind)
        if word is None:
            raise BadModel(
                f"{side} {tensor.name!r} has element type {tensor.kind} of LiteRT, which DIN "
                "carries to no slice",
                hint="convert the model with inputs and outputs of numbers",
            )
        dims: tuple[Dim, ...] = tensor.shape
        specs.append(TensorSpec(tensor.name, word, dims))
    check_names(specs, side)
    return tuple(specs)


def _live_bytes(operator: Table, tensors: list[_Tensor]) -> int:
    used = (*operator.numbers(_OPERATOR_INPUTS), *operator.numbers(_OPERATOR_OUTPUTS))
    return sum(tensors[each].nbytes for each in used if 0 <= each < len(tensors))


def _custom(model: Table) -> list[Need]:
    found: list[Need] = []
    for code in model.tables(_MODEL_CODES):
        name = code.text(_CODE_CUSTOM)
        if name:
            version = code.number(_CODE_VERSION, "i", 1)
            found.append(Need(OPERATOR_PREFIX + name, version, name))
    return found
