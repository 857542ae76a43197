"""Nodes whose backend cannot run an operator: told before anything runs, and what to do."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from placement_fleet import names, node, part

from din.domain.kernels import RELEASES
from din.domain.node import FleetNode
from din.domain.support import Need, Needs
from din.errors import CannotPlace
from din.placement.explain import explain
from din.placement.planner import plan_deployment
from din.placement.policy import WEIGHTED_LEAST_LOAD

NPU = "aarch64-ascend310p-cann6.3"
HALF = (("coordinate_transformation_mode", "half_pixel"), ("mode", "linear"))
RESIZE = Needs(13, 8, (Need("Relu", 13, "r"), Need("Resize", 13, "/model.10/Resize", HALF)))


def with_versions(each: FleetNode, **versions: str) -> FleetNode:
    return replace(each, profile=replace(each.profile, versions=versions))


def npu(number: int, device_type: str = NPU) -> FleetNode:
    return node(number, backends=("cann",), device_type=device_type)


def refusal(part_, fleet) -> CannotPlace:
    with pytest.raises(CannotPlace) as found:
        plan_deployment([part_], (), fleet, random=Random(1))
    return found.value


def test_a_resize_that_cann_lacks_is_refused_with_node_operator_attribute_and_backends():
    """T33. T33: on every node with that backend, and who could is named."""
    wanted = part(0, backend="cann", needs=RESIZE)
    cpu = with_versions(node(2), onnxruntime="1.32.0")
    error = refusal(wanted, [npu(1), cpu])
    first, *others = error.message.splitlines()
    assert first.startswith(
        "OP not supported: Resize at node '/model.10/Resize': cann 6.3 takes asymmetric"
    )
    (line,) = [each for each in others if each.startswith("  operators (1)")]
    assert "n1 has cann 6.3, needs Resize with coordinate_transformation_mode=half_pixel" in line
    assert "could run it: onnxruntime 1.32.0" in error.hint
    assert "resize_half_pixel_to_asymmetric" in error.hint


def test_another_version_of_the_backend_takes_the_slice_and_the_plan_says_why_not_the_first():
    wanted = part(0, backend="cann", needs=RESIZE)
    fleet = [npu(1), npu(2, "aarch64-ascend310p-cann8.0")]
    plan = plan_deployment([wanted], (), fleet, random=Random(1))
    assert names(plan.placements) == ["n2"]
    found = explain(wanted, fleet, WEIGHTED_LEAST_LOAD, chosen=(fleet[1].profile.node_id,))
    (rejection,) = [each for each in found if each.node == "n1"]
    assert rejection.constraint == "operators"
    assert rejection.observed == "cann 6.3"


def test_a_backend_that_nobody_knows_is_tried_and_said_to_be_unknown():
    unknown = node(1, backends=("tflite",))
    plan = plan_deployment(
        [part(0, backend="tflite", needs=RESIZE)], (), [unknown], random=Random(1)
    )
    assert names(plan.placements) == ["n1"]
    error = refusal(part(0, backend="cann", needs=RESIZE), [npu(2), unknown])
    assert "not known of tflite" in error.hint
    assert "onnxruntime 1.32, which no node has" in error.hint


def test_an_engine_that_is_older_than_the_file_gets_no_slice_and_a_newer_one_does():
    """T34. T34."""
    older, newer = next(iter(RELEASES)), list(RELEASES)[-1]
    opset = RELEASES[newer][1]
    assert RELEASES[older][1] < opset
    fleet = [
        with_versions(node(1), onnxruntime=f"{older}.0"),
        with_versions(node(2), onnxruntime=f"{newer}.0"),
    ]
    wanted = part(0, needs=Needs(opset, 10))
    for _ in range(4):
        plan = plan_deployment([wanted], (), fleet, random=Random(_))
        assert names(plan.placements) == ["n2"]
    error = refusal(wanted, fleet[:1])
    assert error.message.startswith(
        f"operator set {opset} not supported: onnxruntime {older}.0 takes at most"
    )
    assert f"could run it: onnxruntime {newer}" not in error.hint
    assert "start a node that can" in error.hint
    one_more = refusal(part(0, needs=Needs(13, 99)), fleet)
    assert one_more.message.startswith("IR version 99 of ONNX not supported")


def test_a_node_that_does_not_say_its_version_is_tried():
    plan = plan_deployment(
        [part(0, needs=Needs(99, 99, RESIZE.operators))], (), [node(1)], random=Random(1)
    )
    assert names(plan.placements) == ["n1"]


def test_openvino_on_an_ascend_npu_says_why_and_what_the_device_has():
    error = refusal(part(0, backend="openvino", device_type=NPU), [npu(1)])
    lines = error.message.splitlines()
    assert lines[0] == "no compatible device found for backend openvino"
    assert "n1 has cann, needs openvino (OpenVINO runs on x86-64 and ARM" in lines[1]
    assert "not on ascend310p" in lines[1]
    assert "the nodes offer cann" in error.hint


def test_what_a_node_lacks_is_asked_once_for_a_kind_of_node_and_kept_apart_by_version():
    wanted = part(0, needs=Needs(28, 8))
    fleet = [with_versions(node(n), onnxruntime=f"1.3{n % 3}.0") for n in range(1, 10)]
    plan = plan_deployment([wanted], (), fleet, random=Random(1))
    chosen = int(plan.placements[0].node[1:])
    assert chosen % 3 == 2
