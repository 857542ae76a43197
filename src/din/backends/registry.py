"""Which engines there are and which of them this machine has. Imports none of them: the agent
asks too, and an engine costs tens of megabytes."""

from __future__ import annotations

import importlib
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from din.errors import UsageError
from din.system.packages import installed_versions

if TYPE_CHECKING:
    from din.backends.contract import Backend


class BackendEntry(Struct, frozen=True, kw_only=True):
    """Where an engine's code lives and what brings it."""

    module: str
    """Of this room."""
    packages: tuple[str, ...]
    """Distributions that bring it; the first one found counts."""
    imports: str
    """The library's own module, which makers also bring outside of packages."""
    takes: str = "ONNX"
    """Files that it loads."""
    makes_code: bool = False
    """It translates models to machine code as it loads, so its workers may run memory that they
    wrote."""
    writes_files: bool = False
    """It loads by path only, so its workers have a folder of their own, in memory."""
    is_assumed: bool = False
    """Offered until it was asked: DIN itself depends on it."""


BACKENDS: Final[dict[str, BackendEntry]] = {
    "onnxruntime": BackendEntry(
        module="din.backends.onnxruntime_backend",
        packages=("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-cann"),
        imports="onnxruntime",
        is_assumed=True,
    ),
    "openvino": BackendEntry(
        module="din.backends.openvino_backend",
        packages=("openvino",),
        imports="openvino",
        makes_code=True,
    ),
    "litert": BackendEntry(
        module="din.backends.litert_backend",
        packages=("ai-edge-litert", "tflite-runtime"),
        imports="ai_edge_litert",
        takes=".tflite",
    ),
    "ncnn": BackendEntry(
        module="din.backends.ncnn_backend",
        packages=("ncnn",),
        imports="ncnn",
        takes=".param and .bin",
        writes_files=True,
    ),
    "mnn": BackendEntry(
        module="din.backends.mnn_backend",
        packages=("MNN",),
        imports="MNN",
        makes_code=True,  # its libraries ask for stacks that can be run, also of its threads
        writes_files=True,
    ),
}
MAKERS: Final = (
    *("tensorrt", "cann", "neuware", "hailo", "coral", "neuron", "vitis-ai", "finn", "tnn"),
    "executorch",
)
"""Engines without a loader, of which `makers` tells what is missing."""
OFFERED_MAX: Final = 5
"""A registration has room for the versions of so many."""


def detect_backends() -> dict[str, str]:
    """Name -> version of each engine that is installed, without importing it; version "" for one
    that no package brought."""
    here = installed_versions(tuple(each for e in BACKENDS.values() for each in e.packages))
    found: dict[str, str] = {}
    for name, entry in BACKENDS.items():
        version = next((here[each] for each in entry.packages if each in here), None)
        if version is not None:
            found[name] = version
        elif PathFinder.find_spec(entry.imports) is not None:
            found[name] = ""
    return found


def entry_of(name: str) -> BackendEntry:
    """Raises UsageError for an unknown name."""
    entry = BACKENDS.get(name)
    if entry is None:
        raise UsageError(
            f"no backend is called {name!r}", hint=f"known backends: {', '.join(sorted(BACKENDS))}"
        )
    return entry


def writes_files(name: str) -> bool:
    """Whether workers of this backend need a folder."""
    entry = BACKENDS.get(name)
    return entry is not None and entry.writes_files


def import_backend(name: str) -> Backend:
    """The module of an engine. Raises UsageError for an unknown or missing one."""
    entry = entry_of(name)
    try:
        return cast("Backend", importlib.import_module(entry.module))
    except ImportError as error:
        raise UsageError(
            f"backend {name!r} cannot be loaded on this node: {error}", hint=how_to_get(entry)
        ) from error


def how_to_get(entry: BackendEntry) -> str:
    """What to do where an engine is missing."""
    if not entry.packages:
        return f"install what brings the Python module {entry.imports} on the node"
    return f"install {' or '.join(entry.packages)} on the node"
