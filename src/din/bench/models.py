"""Models that benchmarks run: fetched ones by name, and trivial ones made here."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from din.errors import NotFound

FOLDER: Final = Path(__file__).resolve().parents[3] / ".cache" / "models"
FP32_BYTES: Final = 4
SESSION: Final = {"optimisation": "all", "threads": "1"}
"""As every contender runs: one thread, all optimisations."""


def fetched(name: str) -> Path:
    """Path of a fetched model. Raises NotFound that says how to fetch it."""
    path = FOLDER / f"{name}.onnx"
    if not path.is_file():
        raise NotFound(
            f"the model {name} is not there", hint=f"run: python scripts/fetch_models.py {name}"
        )
    return path


def write_identity(path: Path, nbytes: int, operators: int = 1) -> Path:
    """A model of Identity operators over one tensor: `x` -> `t1` -> ... ; nothing to compute."""
    import onnx
    from onnx import TensorProto, helper

    shape = [1, nbytes // FP32_BYTES]
    names = ["x", *(f"t{number + 1}" for number in range(operators))]
    infos: list[Any] = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in (names[0], names[-1])
    ]
    nodes = [helper.make_node("Identity", [before], [after]) for before, after in pairwise(names)]
    graph = helper.make_graph(nodes, "identity", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


def write_convolutions(path: Path, layers: int) -> Path:
    """A chain of 3x3 convolutions over 512 channels, as in the body of a ResNet: 9 MiB of weights
    a layer, the same each time."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shape, chance = (512, 512, 3, 3), np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(chance.standard_normal(shape, np.float32), f"w{number}")
        for number in range(layers)
    ]
    nodes = [
        helper.make_node("Conv", [f"x{number}", f"w{number}"], [f"x{number + 1}"], pads=[1] * 4)
        for number in range(layers)
    ]
    infos: list[Any] = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 512, 14, 14])
        for name in ("x0", f"x{layers}")
    ]
    graph = helper.make_graph(nodes, "convolutions", infos[:1], infos[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


def session_of(model: Path | bytes) -> Any:
    """An ONNX Runtime session with the settings of every contender."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    source = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def example_of(session: Any) -> Any:
    """A random input for a model with one input of fixed shape; the same each time."""
    import numpy as np

    shape = session.get_inputs()[0].shape
    return np.random.default_rng(0).random(shape, np.float32)
