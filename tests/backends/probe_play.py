"""A probe over models that are made here, asked as a gateway would ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model

from din.backends.probe import ProbeSession, load_probe
from din.domain.probe import ORDER_TENSOR, REPORT_TENSOR, ProbeOrder, ProbePart, ProbeReport

FLOAT = TensorProto.FLOAT
WHOLE_PART = ProbePart(inputs=("x",), outputs=("y",))
FIRST_PART = ProbePart(index=0, inputs=("x",), outputs=("t",))
LAST_PART = ProbePart(index=1, inputs=("t",), outputs=("y",))


def value(name: str, kind: int = FLOAT, shape: Sequence[int | str] = ("N", 4)) -> Any:
    return (name, kind, shape)


def weight(name: str, *numbers: float, dtype: Any = np.float32) -> Any:
    return numpy_helper.from_array(np.array(numbers, dtype), name)


def scalar(name: str, number: Any) -> Any:
    return numpy_helper.from_array(np.array(number), name)


def step(kind: str, given: Sequence[str], made: str, **more: Any) -> Any:
    return helper.make_node(kind, list(given), [made], name=more.pop("name", made), **more)


def whole(scale: float = 3.0) -> bytes:
    """x + w -> t -> t * s -> y."""
    nodes = [step("Add", ["x", "w"], "t"), step("Mul", ["t", "s"], "y")]
    weights = [weight("w", 1, 2, 3, 4), weight("s", scale)]
    return model(nodes, [value("x")], [value("y")], initializer=weights)


def first() -> bytes:
    nodes = [step("Add", ["x", "w"], "t")]
    return model(nodes, [value("x")], [value("t")], initializer=[weight("w", 1, 2, 3, 4)])


def last(scale: float = 3.0) -> bytes:
    nodes = [step("Mul", ["t", "s"], "y")]
    return model(nodes, [value("t")], [value("y")], initializer=[weight("s", scale)])


def ask(
    session: ProbeSession, order: ProbeOrder | bytes, **given: np.ndarray[Any, Any]
) -> ProbeReport:
    data = order if isinstance(order, bytes) else msgspec.json.encode(order)
    inputs = {ORDER_TENSOR: np.frombuffer(data, np.uint8), **given}
    report = session.run(inputs, (), {})[REPORT_TENSOR]
    return msgspec.json.decode(report.tobytes(), type=ProbeReport)


def probe(*files: bytes, **options: str) -> ProbeSession:
    return load_probe(files, {}, options, ())


def order(kind: str, *parts: ProbePart, **more: Any) -> ProbeOrder:
    return ProbeOrder(kind=kind, parts=parts or (WHOLE_PART,), **more)
