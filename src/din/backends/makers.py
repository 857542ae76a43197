"""Engines of makers of accelerators that DIN runs no slices on: what of each is on this machine,
what is missing, how to get it, and why there is no loader yet.

Nothing here is imported by an agent: it is asked in a process of its own, as every engine is, since
opening a maker's library may hang on a stuck device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from din.backends.registry import MAKERS
from din.domain.engine import EngineFacts, bounded
from din.system.packages import installed_versions

NODES_SHOWN_MAX: Final = 4
_NO_DEVICES: Final = "confined workers reach no devices, and none was there to try it on"


class Maker(Struct, frozen=True, kw_only=True):
    """What an engine consists of, as its maker documents it."""

    module: str
    """Python module by which it is driven."""
    packages: tuple[str, ...] = ()
    """Distributions that bring it."""
    libraries: tuple[str, ...] = ()
    """Shared libraries, as the loader knows them; each is needed."""
    devices: tuple[str, ...] = ()
    """Patterns of device nodes; one is needed. Empty = it runs on the processor."""
    takes: str
    how: str
    """To get it."""
    why_not: str


ALL: Final[dict[str, Maker]] = {
    "tensorrt": Maker(
        module="tensorrt",
        packages=("tensorrt",),
        libraries=("libnvinfer.so.10",),
        devices=("nvidia[0-9]*",),
        takes="ONNX, or .plan files made on the same GPU",
        how="NVIDIA's driver, then `pip install tensorrt`",
        why_not=_NO_DEVICES,
    ),
    "cann": Maker(
        module="acl",
        libraries=("libascendcl.so",),
        devices=("davinci[0-9]*",),
        takes=".om files that `atc` makes of ONNX",
        how="Huawei's driver, firmware and CANN toolkit; then `source set_env.sh`",
        why_not=_NO_DEVICES,
    ),
    "neuware": Maker(
        module="magicmind.python.runtime",
        libraries=("libcnrt.so", "libmagicmind_runtime.so"),
        devices=("cambricon_dev[0-9]*",),
        takes="ONNX by MagicMind's parser",
        how="Cambricon's driver, NeuWare and MagicMind",
        why_not=_NO_DEVICES,
    ),
    "hailo": Maker(
        module="hailo_platform",
        packages=("hailort",),
        libraries=("libhailort.so",),
        devices=("hailo[0-9]*",),
        takes=".hef files of Hailo's compiler",
        how="HailoRT, its driver and its Python wheel from Hailo's developer zone",
        why_not=_NO_DEVICES,
    ),
    "coral": Maker(
        module="ai_edge_litert",
        libraries=("libedgetpu.so.1",),
        devices=("apex_[0-9]*",),
        takes=".tflite files of the Edge TPU compiler",
        how="the driver `gasket-dkms` and `libedgetpu1-std` from Coral's packages, and LiteRT",
        why_not=_NO_DEVICES,
    ),
    "neuron": Maker(
        module="torch_neuronx",
        packages=("torch-neuronx",),
        libraries=("libnrt.so.1",),
        devices=("neuron[0-9]*",),
        takes="TorchScript traced by torch-neuronx",
        how="`aws-neuronx-dkms`, `aws-neuronx-runtime-lib`, and torch-neuronx with PyTorch",
        why_not=f"it takes what PyTorch traced and no ONNX; {_NO_DEVICES}",
    ),
    "vitis-ai": Maker(
        module="vart",
        libraries=("libvart-runner.so", "libxir.so"),
        devices=("dpu*", "xclmgmt*"),
        takes=".xmodel files compiled for one DPU",
        how="the Vitis AI runtime (VART, XIR) of the board's image",
        why_not=_NO_DEVICES,
    ),
    "finn": Maker(
        module="pynq",
        packages=("pynq",),
        libraries=("libxrt_core.so",),
        devices=("xclmgmt*", "fpga*"),
        takes="a bitstream with its driver.py for each model",
        how="XRT and PYNQ of the board's image",
        why_not="a model is a bitstream that is loaded into the FPGA as root, with Python code of "
        "its own, which no confined worker runs",
    ),
    "tnn": Maker(
        module="pytnn",
        libraries=("libTNN.so",),
        takes=".tnnproto and .tnnmodel files",
        how="build TNN with TNN_PYBIND_ENABLE=ON: there is no package",
        why_not="no package of it installs, so a loader could not be tried",
    ),
    "executorch": Maker(
        module="executorch.runtime",
        packages=("executorch",),
        takes=".pte files that PyTorch exports",
        how="`pip install executorch`, which brings PyTorch",
        why_not="it takes files of PyTorch and brings PyTorch to the node, hundreds of MB",
    ),
}
assert tuple(ALL) == MAKERS, "the registry lists them without importing this module"


class Machine(Protocol):
    """What is looked at; tests put recorded machines in its place."""

    def has_module(self, name: str) -> bool:
        """Whether Python would find it. Imports nothing."""
        ...

    def version(self, packages: tuple[str, ...]) -> str:
        """Of the first of these that is installed; empty = none is."""
        ...

    def shared_object_trouble(self, name: str) -> str:
        """Why the loader does not open it; empty = it does."""
        ...

    def nodes(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """Device nodes that are there."""
        ...


class ThisMachine:
    """Implements Machine."""

    def has_module(self, name: str) -> bool:
        """See Machine."""
        return PathFinder.find_spec(name.partition(".")[0]) is not None

    def version(self, packages: tuple[str, ...]) -> str:
        """See Machine."""
        here = installed_versions(packages) if packages else {}
        return next((here[each] for each in packages if each in here), "")

    def shared_object_trouble(self, name: str) -> str:
        """See Machine."""
        try:
            ctypes.CDLL(name)
        except OSError as error:
            return str(error)
        return ""

    def nodes(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """See Machine."""
        found = (str(each) for pattern in patterns for each in Path("/dev").glob(pattern))
        return tuple(sorted(found))


def facts_of(name: str, machine: Machine | None = None) -> EngineFacts:
    """What of an engine is here and what is missing; it is never usable. Raises KeyError for a name
    that is not in MAKERS."""
    maker, machine = ALL[name], machine or ThisMachine()
    nodes = machine.nodes(maker.devices)
    missing = tuple(_missing(maker, machine, nodes))
    lacks = f"missing: {'; '.join(missing)}. " if missing else "all of it is here. "
    return EngineFacts(
        backend=name,
        version=machine.version(maker.packages),
        devices=nodes[:NODES_SHOWN_MAX],
        trouble=bounded(f"{lacks}DIN has no loader for it: {maker.why_not}"),
        hint=bounded(f"it takes {maker.takes}; get it by: {maker.how}"),
    )


def _missing(maker: Maker, machine: Machine, nodes: tuple[str, ...]) -> Iterable[str]:
    if not machine.has_module(maker.module):
        yield f"Python module {maker.module}"
    for each in maker.libraries:
        if trouble := machine.shared_object_trouble(each):
            is_absent = trouble.startswith(f"{each}:") and "No such file" in trouble
            yield f"library {each}" if is_absent else f"library {each} ({trouble})"
    if maker.devices and not nodes:
        yield f"device {' or '.join('/dev/' + each for each in maker.devices)}"
