"""Options of each backend as a registration may write them. Pure: the gateway checks them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from din.domain.probe import PROBE
from din.errors import UsageError

OPTIMISATIONS: Final = ("off", "basic", "extended", "all")
THREADS_MAX: Final = 256


def check_backend_options(backend: str, options: Mapping[str, str]) -> None:
    """Raises UsageError naming option, value and what is allowed; backends that are not DIN's own
    check theirs when they load."""
    if backend == PROBE:
        raise UsageError(
            f"backend {PROBE!r} looks at models and runs none",
            hint="leave the backend out, or write onnxruntime",
        )
    if backend != "onnxruntime":
        return
    for name, value in options.items():
        if name == "optimisation":
            if value not in OPTIMISATIONS:
                raise _bad_option(name, value, ", ".join(OPTIMISATIONS))
        elif name == "threads":
            if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= THREADS_MAX:
                raise _bad_option(name, value, f"a whole number from 1 to {THREADS_MAX}")
        else:
            raise UsageError(
                f"backend onnxruntime has no option {name!r}",
                hint="its options are optimisation and threads",
            )


def _bad_option(name: str, value: str, allowed: str) -> UsageError:
    return UsageError(
        f"backend option {name}={value!r} is not possible", hint=f"allowed: {allowed}"
    )
