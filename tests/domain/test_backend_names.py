"""Which names of backends were probably typed wrongly."""

from __future__ import annotations

import pytest

from din.domain.backend_names import UNKNOWN_TOLD_MAX, backend_meant, unknown_backends
from din.domain.strategy import SliceSetting, Strategy

KNOWN = ("onnxruntime", "tensorrt", "openvino", "cann", "neuware")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("tensorrtt", "tensorrt"),
        ("TensorRT", "tensorrt"),
        ("onnxruntme", "onnxruntime"),
        ("opnevino", "openvino"),
        ("rknn", None),
        ("x" * 1_000_000, None),
        ("", None),
    ],
)
def test_a_name_is_held_against_those_that_are_known(written: str, meant: str | None) -> None:
    assert backend_meant(written, KNOWN) == meant


def test_known_names_and_those_that_a_node_offers_are_not_told() -> None:
    strategy = Strategy(
        backend_map={"a:b": "tensorrt", "c:d": "rknn"},
        slices=(SliceSetting(backend="openvino"), SliceSetting()),
    )
    assert list(unknown_backends(strategy, ["rknn"])) == []
    (fault,) = unknown_backends(strategy)
    assert fault.path == ("backend_map", "c:d")
    assert "'rknn'" in fault.message
    assert "wait until a node joins" in fault.hint


def test_both_places_are_told_and_no_more_than_the_limit() -> None:
    strategy = Strategy(
        backend_map={"a:b": "tensorrtt"}, slices=(SliceSetting(), SliceSetting(backend="can"))
    )
    first, second = unknown_backends(strategy)
    assert (first.path, second.path) == (("backend_map", "a:b"), ("slices", 1, "backend"))
    assert first.hint.startswith("did you mean 'tensorrt'? ")
    assert second.hint.startswith("did you mean 'cann'? ")
    many = Strategy(backend_map={f"n{each}": "y" for each in range(1_000)})
    assert len(list(unknown_backends(many))) == UNKNOWN_TOLD_MAX
