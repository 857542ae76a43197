"""Where integers come out alike."""

from __future__ import annotations

import pytest

from din.domain.node import NodeId, NodeProfile
from din.domain.numerics import computes_in_integers, numerics_of
from din.domain.support import NOTHING, Need, Needs


def needs(*operators: str, node: str = "n") -> Needs:
    return Needs(17, 9, tuple(Need(each, 13, node) for each in operators))


@pytest.mark.parametrize(
    "operator",
    [
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
        "DynamicQuantizeLinear",
        "QuantizeLinear",
        "DequantizeLinear",
        "com.microsoft.QLinearAdd",
        "com.microsoft.MatMulIntegerToFloat",
        "com.microsoft.QAttention",
        "com.microsoft.DequantizeLinear",
    ],
)
def test_quantised_operators_compute_in_integers(operator: str) -> None:
    assert computes_in_integers(needs("Conv", operator))


def test_floats_and_what_is_not_known_do_not() -> None:
    assert not computes_in_integers(needs("Conv", "MatMul", "Relu", "com.microsoft.FusedConv"))
    assert not computes_in_integers(NOTHING)


def test_coders_at_a_cut_make_no_slice_one_of_integers() -> None:
    """They round what crosses; between them the model computes as it always did."""
    coders = (
        Need("QuantizeLinear", 13, "t4.uint8.QuantizeLinear"),
        Need("DequantizeLinear", 13, "t2.DequantizeLinear"),
        Need("Conv", 11, "conv"),
    )
    assert not computes_in_integers(Needs(17, 9, coders))


def profile(**changes: object) -> NodeProfile:
    fields: dict[str, object] = {
        "node_id": NodeId("a" * 16),
        "session": 1,
        "name": "n",
        "device_type": "x86_64-cpu",
        "cpu_model": "any",
        "cpu_isa": ("avx2", "avx512_vnni"),
        "cpu_cores": 2.0,
        "memory_mib": 100,
        "backends": ("onnxruntime",),
        "versions": {"onnxruntime": "1.32.0", "din": "0.1.0"},
    }
    return NodeProfile(**(fields | changes))  # pyright: ignore[reportArgumentType]


def test_instruction_sets_device_and_engine_decide_and_nothing_else() -> None:
    """T40."""
    here = numerics_of(profile(), "onnxruntime")
    same = profile(name="m", cpu_isa=("avx512_vnni", "avx2"), cpu_model="other", cpu_cores=8.0,
                   versions={"onnxruntime": "1.32.0", "din": "0.2.0"})  # fmt: skip
    assert numerics_of(same, "onnxruntime") == here
    for changed in (
        {"cpu_isa": ("avx2",)},
        {"device_type": "aarch64-cpu"},
        {"versions": {"onnxruntime": "1.31.0"}},
    ):
        assert numerics_of(profile(**changed), "onnxruntime") != here
    assert "avx512_vnni" in str(here)
