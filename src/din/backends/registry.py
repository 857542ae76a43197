"""Which engines there are and which of them this machine has. Imports none of them: the agent
asks too, and an engine costs tens of megabytes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from din.errors import UsageError
from din.system.packages import installed_versions

if TYPE_CHECKING:
    from din.backends.contract import Backend


class BackendEntry(Struct, frozen=True):
    """Where an engine's code lives and which packages bring it, the first one found counts."""

    module: str
    packages: tuple[str, ...]


BACKENDS: Final[dict[str, BackendEntry]] = {
    "onnxruntime": BackendEntry(
        "din.backends.onnxruntime_backend", ("onnxruntime", "onnxruntime-gpu")
    ),
}


def detect_backends() -> dict[str, str]:
    """Name -> version of each engine that is installed, without importing it."""
    here = installed_versions(tuple(each for e in BACKENDS.values() for each in e.packages))
    return {
        name: next(here[package] for package in entry.packages if package in here)
        for name, entry in BACKENDS.items()
        if not here.keys().isdisjoint(entry.packages)
    }


def import_backend(name: str) -> Backend:
    """The module of an engine. Raises UsageError for an unknown or missing one."""
    entry = BACKENDS.get(name)
    if entry is None:
        raise UsageError(
            f"no backend is called {name!r}", hint=f"known backends: {', '.join(sorted(BACKENDS))}"
        )
    try:
        return cast("Backend", importlib.import_module(entry.module))
    except ImportError as error:
        raise UsageError(
            f"backend {name!r} cannot be loaded on this node: {error}",
            hint=f"install {' or '.join(entry.packages)} on the node",
        ) from error
