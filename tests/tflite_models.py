"""Small .tflite files, written with the schema that LiteRT's package brings."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

WEIGHTS = np.array([[1, -2, 0.5, 0.25], [0.5, 1, -1, 2]], np.float32)
BIAS = np.array([0.125, -0.5], np.float32)


def dense(
    *, rows: int | None = 1, names: tuple[str, str] = ("x", "y"), kind: int = 0, custom: str = ""
) -> bytes:
    """y = relu(x W^T + b), x FP32 [rows, 4]; None = any number of rows. `custom`: the operator is
    called so, and no engine knows it."""
    model = schema.ModelT()
    model.version = 3
    model.operatorCodes = [_code(custom)]
    model.buffers = [_buffer(b""), _buffer(WEIGHTS.tobytes()), _buffer(BIAS.tobytes())]
    first = -1 if rows is None else rows
    graph = schema.SubGraphT()
    graph.tensors = [
        _tensor(names[0], [rows or 1, 4], [first, 4], 0, kind),
        _tensor("w", [2, 4], None, 1),
        _tensor("b", [2], None, 2),
        _tensor(names[1], [rows or 1, 2], [first, 2], 0, kind),
    ]
    graph.inputs, graph.outputs = [0], [3]
    operator = schema.OperatorT()
    operator.opcodeIndex = 0
    operator.inputs, operator.outputs = [0, 1, 2], [3]
    if not custom:
        operator.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
        options = schema.FullyConnectedOptionsT()
        options.fusedActivationFunction = schema.ActivationFunctionType.RELU
        operator.builtinOptions = options
    graph.operators = [operator]
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def dense_answer(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `dense` makes of it."""
    return np.maximum(x @ WEIGHTS.T + BIAS, 0)


def _code(custom: str) -> Any:
    code = schema.OperatorCodeT()
    number = schema.BuiltinOperator.CUSTOM if custom else schema.BuiltinOperator.FULLY_CONNECTED
    code.deprecatedBuiltinCode = code.builtinCode = number
    code.version = 1
    code.customCode = custom or None
    return code


def _buffer(data: bytes) -> Any:
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(data, np.uint8) if data else None
    return buffer


def _tensor(name: str, shape: list[int], free: list[int] | None, buffer: int, kind: int = 0) -> Any:
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.shapeSignature = name, shape, free
    tensor.buffer, tensor.type = buffer, kind
    tensor.hasRank = True
    return tensor
