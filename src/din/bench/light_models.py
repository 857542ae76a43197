"""The nine topologies that come with the onnx package, as they are or with random weights.

As they come, every weight is one value made by ConstantOfShape, and most of them answer the same to
any input: they prove topology. With random weights of the right size a wrong cut shows in numbers.
"""

from __future__ import annotations

from math import prod, sqrt
from pathlib import Path
from typing import Any, Final

LIGHT_MODELS: Final = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
RTOL, ATOL = 1e-3, 1e-7
"""What the package's own suite allows of the answers that it ships."""


def light_model(name: str) -> Any:
    """One topology as ModelProto."""
    import onnx

    return onnx.load(str(_folder() / f"light_{name}.onnx"))


def shipped_answer(name: str) -> Any:
    """What it answers to `example`."""
    from onnx import TensorProto, numpy_helper

    data = (_folder() / f"light_{name}_output_0.pb").read_bytes()
    return numpy_helper.to_array(TensorProto.FromString(data))


def example(model: Any) -> dict[str, Any]:
    """The input of the package's suite: 0 to 1 in equal steps, for each input that is no weight."""
    import numpy as np

    stored = {each.name for each in model.graph.initializer}
    found: dict[str, Any] = {}
    for value in model.graph.input:
        if value.name not in stored:
            shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
            count = prod(shape)
            found[value.name] = (np.arange(count).reshape(shape) / count).astype(np.float32)
    return found


def with_random_weights(model: Any, seed: int) -> Any:
    """Each ConstantOfShape becomes a stored weight; numbers stay of the size of the inputs.

    The softmax at the end is left out: it would hide differences.
    """
    import numpy as np
    from onnx import numpy_helper

    chance = np.random.default_rng(seed)
    graph = model.graph
    shapes = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    made = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    last = nodes[-1]
    if last.op_type == "Softmax":
        graph.output[0].name = last.input[0]
        graph.output[0].type.tensor_type.ClearField("shape")
        nodes.pop()
    read = {name for node in nodes for name in node.input}
    weights = [
        numpy_helper.from_array(_weight(chance, shapes[node.input[0]].tolist()), node.output[0])
        for node in made
        if node.output[0] in read
    ]
    kept = [each for each in graph.initializer if each.name in read]
    inputs = [each for each in graph.input if each.name not in shapes]
    for field, values in (("node", nodes), ("initializer", [*kept, *weights]), ("input", inputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    model.ir_version = 8
    return model


def _weight(chance: Any, shape: list[int]) -> Any:
    import numpy as np

    if len(shape) < 2:  # scales, shifts, variances: positive, around one
        return chance.uniform(0.5, 1.5, shape).astype(np.float32)
    spread = sqrt(2 / prod(shape[1:]))
    return (chance.standard_normal(shape, np.float32) * spread).astype(np.float32)


def _folder() -> Path:
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data" / "light"
