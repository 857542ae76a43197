"""What a worker loads for an order, without a process around it."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from din.domain.probe import (
    ORDER_SPEC,
    ORDER_TENSOR,
    REPORT_SPEC,
    REPORT_TENSOR,
    ProbeOrder,
    ProbePart,
    ProbeReport,
    ProfileReport,
)
from din.errors import UsageError
from din.wire.worker import ArenaLayout, Fork, Given
from din.worker.load import load


def file_of(data: bytes) -> int:
    descriptor = os.memfd_create("model")
    os.write(descriptor, data)
    return descriptor


def negation() -> bytes:
    node = helper.make_node("Neg", ["x"], ["y"], name="negate")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]))
    model.ir_version = 8
    return model.SerializeToString()


def fork(*files: Given, **more: object) -> Fork:
    fields: dict[str, object] = {
        "worker_id": 1,
        "backend": "onnxruntime",
        "backend_options": {},
        "inputs": (),
        "outputs": (),
        "artifacts": files,
        "channels": (ArenaLayout(2, 1),),
    }
    return Fork(**(fields | more))


def test_a_probe_takes_an_order_and_gives_a_report() -> None:
    order = fork(Given("model", "a"), backend="probe", inputs=(ORDER_SPEC,), outputs=(REPORT_SPEC,))
    session = load(order, [file_of(negation())]).session
    assert session.inputs == (ORDER_SPEC,)
    assert session.outputs == (REPORT_SPEC,)
    assert not session.warm()
    asked = ProbeOrder(kind="profile", parts=(ProbePart(inputs=("x",), outputs=("y",)),))
    data = np.frombuffer(msgspec.json.encode(asked), np.uint8)
    report = session.run({ORDER_TENSOR: data}, (), {})[REPORT_TENSOR]
    found = msgspec.json.decode(report.tobytes(), type=ProbeReport)
    assert isinstance(found, ProfileReport)
    assert [each.name for each in found.operators] == ["negate"]


def test_a_probe_with_a_bad_option_is_not_loaded() -> None:
    order = fork(Given("model", "a"), backend="probe", backend_options={"threads": "many"})
    with pytest.raises(UsageError, match="threads"):
        load(order, [file_of(negation())])
