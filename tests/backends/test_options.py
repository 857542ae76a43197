"""Options of backends: each engine takes its own, and what no engine of a model has is refused."""

from __future__ import annotations

import onnx_models as models
import onnxruntime as ort
import pytest

from din.backends.onnxruntime_backend import load
from din.backends.onnxruntime_settings import (
    Providers,
    chosen_providers,
    given_up,
    session_options,
)
from din.backends.options import (
    PROVIDERS,
    check_backend_options,
    check_options_of,
    check_own_options,
    threads_of,
)
from din.errors import Unavailable, UsageError

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def test_an_option_that_no_engine_of_the_model_has_is_refused() -> None:
    with pytest.raises(UsageError, match="onnxruntime has no option 'device'") as caught:
        check_backend_options("onnxruntime", {"device": "GPU"})
    assert "openvino: threads, profile, device" in caught.value.hint
    with pytest.raises(UsageError, match="no option 'colour'"):
        check_options_of({"onnxruntime", "openvino"}, {"colour": "red"})
    with pytest.raises(UsageError, match=r"no option 'cuda\.device_id'"):
        check_backend_options("openvino", {"cuda.device_id": "0"})


def test_a_model_over_several_engines_may_have_options_of_each() -> None:
    options = {"optimisation": "all", "device": "CPU", "threads": "2", "cuda.device_id": "0"}
    check_options_of({"onnxruntime", "openvino"}, options)
    check_own_options("ncnn", options)


def test_a_backend_of_somebody_else_checks_its_own_options() -> None:
    check_options_of({"onnxruntime", "homemade"}, {"colour": "red"})


@pytest.mark.parametrize("value", ["gpu", "", "GPU.0", "x" * 1000])
def test_values_are_checked_whosever_option_it_is(value: str) -> None:
    with pytest.raises(UsageError, match="device="):
        check_options_of({"openvino"}, {"device": value})


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ({}, 2),
        ({"profile": "low-memory"}, 1),
        ({"profile": "fast"}, 8),
        ({"profile": "fast", "threads": "3"}, 3),
        ({"threads": "16"}, 16),
    ],
)
def test_threads_follow_the_profile_unless_they_are_named(
    options: dict[str, str], threads: int
) -> None:
    assert threads_of(options, 8) == threads
    assert threads_of({}, 1) == 1


def test_a_profile_sets_threads_arena_and_spinning_and_single_options_win() -> None:
    low = session_options({"profile": "low-memory"})
    assert (low.intra_op_num_threads, low.enable_cpu_mem_arena) == (1, False)
    assert low.get_session_config_entry("session.disable_prepacking") == "1"
    fast = session_options({"profile": "fast", "spinning": "off"})
    assert fast.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert fast.enable_cpu_mem_arena
    spins = session_options({"profile": "fast"})
    assert spins.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    both = session_options({"inter_threads": "2"})
    assert both.inter_op_num_threads == 2
    assert both.execution_mode == ort.ExecutionMode.ORT_PARALLEL


@pytest.mark.parametrize("profile", ["low-memory", "balanced", "fast"])
def test_every_profile_computes_the_same(profile: str) -> None:
    session = load(models.double(), {"profile": profile})
    assert session.warm()


def test_providers_come_in_the_order_of_preference_with_their_options() -> None:
    options = {"provider": "tensorrt,cuda", "cuda.device_id": "1", "tensorrt.trt_fp16_enable": "0"}
    here = [f"{each}ExecutionProvider" for each in PROVIDERS.values()]
    found = chosen_providers(options, here)
    assert found.chosen == ("TensorrtExecutionProvider", CUDA, CPU)
    assert found.options == ({"trt_fp16_enable": "0"}, {"device_id": "1"}, {})
    assert chosen_providers(options | {"fallback": "none"}, here).chosen[-1] == CUDA


def test_a_provider_that_the_library_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(Unavailable, match=r"no provider cuda: it has .*CPU") as caught:
        load(models.double(), {"provider": "cuda"})
    assert "fallback=node" in caught.value.hint


def test_a_fallback_to_the_processor_is_allowed_by_name_and_told() -> None:
    session = load(models.double(), {"provider": "cuda", "fallback": "node"})
    assert session.warm()
    assert "NOT cuda, which was asked for" in session.engine
    assert "NOT" not in load(models.double(), {}).engine


def test_a_provider_that_does_not_start_is_never_dropped_in_silence() -> None:
    asked = Providers((CUDA, CPU), ({}, {}))
    with pytest.raises(Unavailable, match=r"provider CUDA of ONNX Runtime .* did not start"):
        given_up(asked, [CPU])
    allowed = Providers((CUDA, CPU), ({}, {}), may_fall_back=True)
    assert given_up(allowed, [CPU]) == ("cuda",)
    assert given_up(asked, [CUDA, CPU]) == ()
