"""Options of ONNX Runtime as the library takes them: settings of a session, and its providers."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import onnxruntime as ort

from din.backends.options import PROVIDERS, check_own_options, threads_of
from din.domain.support import ONNXRUNTIME
from din.errors import Unavailable

CPU: Final = "CPUExecutionProvider"
SUFFIX: Final = "ExecutionProvider"
OPTIMISATION: Final = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def session_options(options: Mapping[str, str]) -> ort.SessionOptions:
    """Translate backend options. Raises UsageError naming option, value and what is allowed."""
    settings = ort.SessionOptions()
    check_own_options(ONNXRUNTIME, options)
    profile = options.get("profile", "balanced")
    settings.graph_optimization_level = OPTIMISATION[options.get("optimisation", "all")]
    settings.intra_op_num_threads = threads_of(options, len(os.sched_getaffinity(0)))
    settings.inter_op_num_threads = int(options.get("inter_threads", "1"))
    if settings.inter_op_num_threads > 1:
        settings.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    # A spinning pool burns a core while it waits; the next request may be on another worker.
    spinning = options.get("spinning", "on" if profile == "fast" else "off")
    for pool in ("intra_op", "inter_op"):
        settings.add_session_config_entry(
            f"session.{pool}.allow_spinning", "1" if spinning == "on" else "0"
        )
    arena = options.get("arena", "off" if profile == "low-memory" else "on") == "on"
    settings.enable_cpu_mem_arena = settings.enable_mem_pattern = arena
    if profile == "low-memory":
        # Weights in the form that kernels like are a second copy of them.
        settings.add_session_config_entry("session.disable_prepacking", "1")
    if options.get("fallback") == "none" and options.get("provider", "cpu") != "cpu":
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if "dml" in options.get("provider", "").split(","):
        settings.enable_mem_pattern = False  # it refuses to load otherwise
    settings.log_severity_level = 4
    return settings


class Providers(NamedTuple):
    """Where a session is to run."""

    chosen: tuple[str, ...] = (CPU,)
    """In the order of preference, in the library's words."""
    options: tuple[dict[str, str], ...] = ({},)
    missing: tuple[str, ...] = ()
    """Asked for, not here, and given up because `fallback` allows it."""
    may_fall_back: bool = False
    """The processor may take all of it when no provider starts."""


def chosen_providers(
    options: Mapping[str, str], available: Collection[str] | None = None
) -> Providers:
    """What options ask for, of what the library has. Raises UsageError, and Unavailable for what
    this node lacks."""
    check_own_options(ONNXRUNTIME, options)
    words = options.get("provider", "cpu").split(",")
    here = set(ort.get_available_providers() if available is None else available)
    missing = [word for word in words if _full_name(word) not in here]
    may_fall_back = options.get("fallback") == "node"
    if missing and not may_fall_back:
        shown = ", ".join(sorted(each.removesuffix(SUFFIX) for each in here))
        raise Unavailable(
            f"ONNX Runtime {ort.__version__} of this node has no provider {', '.join(missing)}: it "
            f"has {shown}",
            hint="install a build that has it, place the slice elsewhere, or register with "
            "--backend-option fallback=node",
        )
    found = [word for word in words if word not in missing]
    if options.get("fallback") != "none" and "cpu" not in found:
        found.append("cpu")
    return Providers(
        tuple(_full_name(each) for each in found),
        tuple(_options_of(each, options) for each in found),
        tuple(missing),
        may_fall_back,
    )


def _full_name(word: str) -> str:
    return PROVIDERS[word] + SUFFIX


def _options_of(word: str, options: Mapping[str, str]) -> dict[str, str]:
    begin = f"{word}."
    return {
        name.removeprefix(begin): value for name, value in options.items() if name.startswith(begin)
    }


def given_up(providers: Providers, started: Sequence[str]) -> tuple[str, ...]:
    """Providers that were asked for and do not run, in our words. Raises Unavailable unless the
    options allow that: the library drops one that does not start without a word."""
    lost = [each for each in providers.chosen if each not in started]
    if lost and not providers.may_fall_back:
        shown = ", ".join(each.removesuffix(SUFFIX) for each in lost)
        raise Unavailable(
            f"the provider {shown} of ONNX Runtime {ort.__version__} did not start on this node",
            hint="look for its driver and libraries in the node's log, or register with "
            "--backend-option fallback=node",
        )
    words = {full: word for word, full in ((each, _full_name(each)) for each in PROVIDERS)}
    return (*providers.missing, *(words[each] for each in lost))
