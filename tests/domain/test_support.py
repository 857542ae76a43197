"""What backends are known to run and not to run, and what nobody knows."""

from __future__ import annotations

import pytest

from din.domain.kernels import RELEASES
from din.domain.support import (
    ATTRIBUTE_RULES,
    DECIDING,
    NEWEST_ONNXRUNTIME,
    OPERATOR_RULES,
    Engine,
    Need,
    Needs,
    engines_of,
    is_known,
    lacks,
    mispairing,
    runs,
    told,
)

MODE = "coordinate_transformation_mode"


def needs(*operators: Need, opset: int = 17, ir_version: int = 8) -> Needs:
    return Needs(opset, ir_version, operators)


def resize(mode: str, since: int = 13) -> Need:
    return Need("Resize", since, "/model.10/Resize", ((MODE, mode), ("mode", "nearest")))


def lines(asked: Needs, backend: str, version: str) -> list[str]:
    return [told(each) for each in lacks(asked, Engine(backend, version))]


def test_cann_6_3_resizes_asymmetrically_only_and_says_so_by_node_and_value():
    """T33."""
    (said,) = lacks(needs(resize("half_pixel")), Engine("cann", "6.3"))
    assert told(said).startswith(
        "OP not supported: Resize at node '/model.10/Resize': cann 6.3 takes asymmetric"
    )
    assert said.what == "Resize with coordinate_transformation_mode=half_pixel"
    assert lines(needs(resize("asymmetric")), "cann", "6.3") == []


@pytest.mark.parametrize("version", ["6.30", "7.0", "", "16.3"])
def test_a_rule_of_one_version_tells_nothing_of_another(version: str):
    engine = Engine("cann", version)
    assert not is_known(engine)
    assert list(lacks(needs(resize("half_pixel")), engine)) == []


@pytest.mark.parametrize("version", ["6.3", "6.3.1"])
def test_a_rule_holds_for_every_patch_of_its_version(version: str):
    assert is_known(Engine("cann", version))
    assert lines(needs(resize("half_pixel")), "cann", version)


def test_tensorrt_8_4_lacks_what_its_table_says():
    asked = needs(Need("NonZero", 13, "a"), Need("Relu", 13, "b"), resize("half_pixel"), opset=13)
    (said,) = lines(asked, "tensorrt", "8.4")
    assert "NonZero at node 'a'" in said
    assert "onnx-tensorrt" in said
    assert lines(needs(resize("tf_crop_and_resize"), opset=13), "tensorrt", "8.4")
    (newer,) = lines(needs(opset=18), "tensorrt", "8.4.1")
    assert newer.startswith("operator set 18 not supported: tensorrt 8.4.1 takes at most 17")


def test_of_a_backend_without_rules_nothing_is_known_and_nothing_refused():
    """The word is the node's, not the table's."""
    engine = Engine("tflite", "2.17")
    assert not is_known(engine)
    assert list(lacks(needs(Need("Anything", 1, "x"), opset=99, ir_version=99), engine)) == []


def test_onnx_runtime_lacks_operators_versions_and_what_came_later():
    def why(need: Need, release: str) -> list[str]:
        return lines(needs(need), "onnxruntime", release)

    assert "has no kernel for it" in why(Need("mine.Blur", 1, "n"), "1.32.0")[0]
    assert "this version" in why(Need("Conv", 23, "n"), "1.32.0")[0]
    assert why(Need("Conv", 11, "n"), "1.32.0") == []
    assert why(Need("Conv", 22, "n"), "1.32.0") == []
    late = Need("com.microsoft.GatedDeltaNet", 1, "n")
    assert "older than 1.32" in why(late, "1.31.1")[0]
    assert why(late, "1.32.0") == []
    assert why(Need("Swish", 24, "n", is_function=True), "1.32.0") == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_file_that_is_newer_than_the_engine_is_refused_and_one_as_new_is_not(release: str):
    """T34."""
    ir_version, opset = RELEASES[release]
    version = f"{release}.0"
    assert lines(needs(opset=opset, ir_version=ir_version), "onnxruntime", version) == []
    (said,) = lines(needs(opset=opset + 1, ir_version=ir_version), "onnxruntime", version)
    assert said == (
        f"operator set {opset + 1} not supported: onnxruntime {version} takes at most {opset}"
    )
    (said,) = lines(needs(opset=opset, ir_version=ir_version + 1), "onnxruntime", version)
    assert said.startswith(f"IR version {ir_version + 1} of ONNX not supported")


def test_a_release_that_is_not_in_the_table_refuses_nothing():
    assert lines(needs(Need("mine.Blur", 1, "n"), opset=99), "onnxruntime", "9.9.0") == []
    assert not is_known(Engine("onnxruntime", "9.9.0"))
    assert is_known(NEWEST_ONNXRUNTIME)


def test_versions_come_from_the_node_or_from_its_device_type():
    found = engines_of(
        ("onnxruntime", "cann"), {"onnxruntime": "1.32.0"}, "aarch64-ascend310p-cann6.3"
    )
    assert found == (Engine("cann", "6.3"), Engine("onnxruntime", "1.32.0"))
    found = engines_of(("tensorrt",), {"tensorrt": "10.1"}, "x86_64-cuda11.8-trt8.6")
    assert found == (Engine("tensorrt", "10.1"),)
    found = engines_of(("tensorrt", "cann"), {}, "x86_64-cuda11.8-trt8.6")
    assert found == (Engine("cann", ""), Engine("tensorrt", "8.6"))


def test_only_the_backend_that_is_asked_for_is_held_against_the_slice():
    engines = (Engine("cann", "6.3"), Engine("onnxruntime", "1.32.0"))
    asked = needs(resize("half_pixel"))
    assert runs(asked, engines, "onnxruntime")
    assert not runs(asked, engines, "cann")
    assert runs(asked, engines, "tensorrt")  # that it is not there is another constraint's word


def test_backends_and_accelerators_that_have_nothing_to_do_with_each_other():
    why = mispairing("openvino", "aarch64-ascend310p-cann6.3")
    assert why.endswith("not on ascend310p")
    assert "Intel" in why
    assert mispairing("openvino", "x86_64") == ""
    assert mispairing("tensorrt", "x86_64-cuda11.8-trt8.6") == ""
    assert mispairing("tensorrt", "x86_64").endswith("this device has no accelerator")
    assert mispairing("tflite", "aarch64-ascend310p-cann6.3") == ""
    assert mispairing("openvino", "") == ""


def test_every_rule_names_its_source_and_every_attribute_of_a_rule_is_looked_at():
    for rule in (*ATTRIBUTE_RULES, *OPERATOR_RULES):
        assert len(rule.source) > 10
        assert rule.versions
    for rule in ATTRIBUTE_RULES:
        assert rule.attribute in DECIDING[rule.operator]
