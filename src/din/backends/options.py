"""Options of each backend as a registration may write them. Pure: the gateway checks them too.

A model has one set of options for all its slices, so an engine leaves alone what is another's; an
option that no engine of the model has is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from din.domain.probe import PROBE
from din.errors import UsageError

OPTIMISATIONS: Final = ("off", "basic", "extended", "all")
THREADS_MAX: Final = 256
THREADS_USUAL: Final = 2
VALUE_CHARACTERS_MAX: Final = 256
SWITCH: Final = ("on", "off")
PROFILES: Final = ("low-memory", "balanced", "fast")
"""low-memory: one thread, nothing kept between runs. balanced: two threads. fast: all cores, and
threads that spin while they wait."""
FALLBACKS: Final = ("none", "operators", "node")
"""What may run on the processor although a provider was named: nothing, operators that it lacks, or
everything where a node does not have it."""
PROVIDERS: Final = {
    "cpu": "CPU",
    "cuda": "CUDA",
    "tensorrt": "Tensorrt",
    "openvino": "OpenVINO",
    "cann": "CANN",
    "dml": "Dml",
    "coreml": "CoreML",
    "nnapi": "Nnapi",
    "xnnpack": "Xnnpack",
    "acl": "ACL",
}
"""Our word -> how ONNX Runtime calls the execution provider, without the word that all end by."""
OPENVINO_DEVICES: Final = ("CPU", "GPU", "NPU")

_ORT, _OPENVINO, _NCNN, _LITERT, _MNN = "onnxruntime", "openvino", "ncnn", "litert", "mnn"
_OF_PROVIDER: Final = re.compile(rf"({'|'.join(PROVIDERS)})\.[A-Za-z0-9_]{{1,64}}")


class _Option(NamedTuple):
    backends: tuple[str, ...]
    allowed: str
    is_possible: Callable[[str], bool]


def _words(*words: str) -> tuple[str, Callable[[str], bool]]:
    return ", ".join(words), lambda value: value in words


def _is_count(value: str) -> bool:
    return value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= THREADS_MAX


def _are_providers(value: str) -> bool:
    named = value.split(",")
    return len(set(named)) == len(named) and all(each in PROVIDERS for each in named)


_COUNT: Final = (f"a whole number from 1 to {THREADS_MAX}", _is_count)
OPTIONS: Final[dict[str, _Option]] = {
    "threads": _Option((_ORT, _OPENVINO, _NCNN, _LITERT, _MNN), *_COUNT),
    "profile": _Option((_ORT, _OPENVINO, _NCNN, _LITERT, _MNN), *_words(*PROFILES)),
    "optimisation": _Option((_ORT,), *_words(*OPTIMISATIONS)),
    "inter_threads": _Option((_ORT,), *_COUNT),
    "spinning": _Option((_ORT,), *_words(*SWITCH)),
    "arena": _Option((_ORT,), *_words(*SWITCH)),
    "provider": _Option(
        (_ORT,),
        f"{', '.join(PROVIDERS)}, or several in the order of preference with commas between",
        _are_providers,
    ),
    "fallback": _Option((_ORT,), *_words(*FALLBACKS)),
    "device": _Option((_OPENVINO,), *_words(*OPENVINO_DEVICES)),
}
BACKENDS_WITH_OPTIONS: Final = frozenset(each for o in OPTIONS.values() for each in o.backends)


def check_backend_options(backend: str, options: Mapping[str, str]) -> None:
    """For a model with slices of one backend, see `check_options_of`."""
    check_options_of((backend,), options)


def check_options_of(backends: Collection[str], options: Mapping[str, str]) -> None:
    """Whether options are possible for a model with slices of these backends. Raises UsageError
    naming option, value and what is allowed; backends that are not DIN's own check theirs when they
    load."""
    if PROBE in backends:
        raise UsageError(
            f"backend {PROBE!r} looks at models and runs none",
            hint="leave the backend out, or write onnxruntime",
        )
    for name, value in options.items():
        _check_value(name, value)
        owners = _owners(name)
        if owners.isdisjoint(backends) and BACKENDS_WITH_OPTIONS.issuperset(backends):
            raise UsageError(
                f"backend {' or '.join(sorted(backends))} has no option {name!r}", hint=_known()
            )


def check_own_options(backend: str, options: Mapping[str, str]) -> None:
    """As an engine looks at them when it loads: what is another's is left alone. Raises
    UsageError."""
    for name, value in options.items():
        if backend in _owners(name):
            _check_value(name, value)


def threads_of(options: Mapping[str, str], cores: int) -> int:
    """Threads that compute one request."""
    if "threads" in options:
        return int(options["threads"])
    usual = {"low-memory": 1, "fast": cores}.get(options.get("profile", ""), THREADS_USUAL)
    return max(1, min(usual, cores, THREADS_MAX))


def _owners(name: str) -> frozenset[str]:
    if _OF_PROVIDER.fullmatch(name):
        return frozenset((_ORT,))
    option = OPTIONS.get(name)
    return frozenset(option.backends) if option is not None else frozenset()


def _check_value(name: str, value: str) -> None:
    option = OPTIONS.get(name)
    if len(value) > VALUE_CHARACTERS_MAX:
        raise _bad_option(name, value[:20] + "…", f"at most {VALUE_CHARACTERS_MAX} characters")
    if option is not None and not option.is_possible(value):
        raise _bad_option(name, value, option.allowed)


def _known() -> str:
    found = "; ".join(
        f"{backend}: {', '.join(name for name, o in OPTIONS.items() if backend in o.backends)}"
        for backend in sorted(BACKENDS_WITH_OPTIONS)
    )
    return f"options are - {found}; and PROVIDER.NAME for what ONNX Runtime's providers take"


def _bad_option(name: str, value: str, allowed: str) -> UsageError:
    return UsageError(
        f"backend option {name}={value!r} is not possible", hint=f"allowed: {allowed}"
    )
