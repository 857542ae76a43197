"""ncnn on the processor: whole .param files with their weights in a .bin, no ONNX.

Importing this module runs a small network, since a worker has no files and the library asks the
machine for its cores once; that starts no thread. Weights are read by path, from a folder of the
worker's own.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from din.backends.contract import Array
from din.backends.making_up import made_up_input
from din.backends.options import check_own_options, threads_of
from din.backends.trial import check_answer
from din.domain.engine import EngineFacts
from din.domain.model import MODEL_FILE
from din.domain.support import Engine, Lack, Needs, lacks
from din.domain.tensor import TensorSpec
from din.errors import BadModel, BadTensor, ExecutionFailed, Unavailable
from din.slicing.ncnn_param import read_ncnn

library: Any = import_module("ncnn")
NAME: Final = "ncnn"
VERSION: Final = str(library.__version__)
WEIGHTS_BYTES_MAX: Final = 250 * 1024 * 1024
"""They lie in the worker's folder while they are read."""
RANK_MAX: Final = 4
NO_MEMORY: Final = -100
"""What the library returns where it gets none."""
_HALVES: Final = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_storage",
)
"""FP32 is computed as FP32: the same file gives the same on every board."""

TRIAL: Final = b"""7767517
3 3
Input            data   0 1 x 0=4
InnerProduct     fc     1 1 x h 0=2 1=1 2=8
ReLU             relu   1 1 h y
"""
TRIAL_WEIGHTS: Final = struct.pack("<I10f", 0, 1, -2, 0.5, 0.25, 0.5, 1, -1, 2, 0.125, -0.5)
TRIAL_INPUT: Final = (1.0, -0.5, 2.0, 0.25)
TRIAL_ANSWER: Final = (3.1875, 0.0)


def describe() -> EngineFacts:
    """See `contract.Backend.describe`."""
    check_answer(_trial(), np.array(TRIAL_INPUT, np.float32), TRIAL_ANSWER)
    return EngineFacts(backend=NAME, version=VERSION, devices=("CPU",))


def supports(needs: Needs) -> tuple[Lack, ...]:
    """See `contract.Backend.supports`."""
    return tuple(lacks(needs, Engine(NAME, VERSION)))


def load(
    model: bytes, options: Mapping[str, str], weights: Mapping[str, memoryview]
) -> NcnnSession:
    """See `contract.Backend.load`; `model` is a .param file, `weights` its one .bin."""
    check_own_options(NAME, options)
    found = read_ncnn({MODEL_FILE: memoryview(model), **weights})
    (data,) = weights.values()
    if len(data) > WEIGHTS_BYTES_MAX:
        raise BadModel(f"the .bin file has {len(data)} bytes, ncnn is given {WEIGHTS_BYTES_MAX}")
    net = library.Net()
    net.opt.use_vulkan_compute = False
    net.opt.num_threads = threads_of(options, len(os.sched_getaffinity(0)))
    for each in _HALVES:
        setattr(net.opt, each, False)
    if net.load_param_mem(str(model, "ascii")):
        raise _refused("a layer of the .param file is not known to it, or is written wrongly")
    try:
        with tempfile.TemporaryDirectory(prefix="din-ncnn-") as folder:
            path = Path(folder) / "weights.bin"
            path.write_bytes(data)
            code = net.load_model(str(path))
    except OSError as error:
        raise Unavailable(
            f"ncnn has no folder to read weights from: {error.strerror or error}",
            hint="it needs namespaces (sandbox level 2): see `din doctor`",
        ) from error
    if code == NO_MEMORY:
        raise MemoryError("ncnn gets no memory for the weights")
    if code:
        raise _refused("the .bin file does not hold the weights of these layers")
    return NcnnSession(net, found.inputs, found.outputs)


def _refused(why: str) -> BadModel:
    return BadModel(
        f"ncnn {VERSION} refuses the files: {why}",
        hint="compare the SHA256 of both with the originals, which belong together",
    )


class NcnnSession:
    """One network. It has no way to end a run: `stop` cannot, and the worker is killed."""

    def __init__(
        self, net: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        self._net, self._inputs, self._outputs = net, inputs, outputs

    @property
    def engine(self) -> str:
        """Engine, version and device."""
        return f"{NAME} {VERSION} (CPU)"

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As the file declares them."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As the file declares them."""
        return self._outputs

    def run(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See `contract.Session.run`."""
        del targets
        extractor = self._net.create_extractor()
        held = {spec.name: _checked(spec, inputs.get(spec.name)) for spec in self._inputs}
        for name, array in held.items():
            if extractor.input(name, library.Mat(array)):
                raise _cannot(f"ncnn takes no input {name!r} of shape {list(array.shape)}")
        return {name: _extracted(extractor, name) for name in wanted or map(_name, self._outputs)}

    def stop(self) -> None:
        """Nothing: ncnn runs to its end, and a worker that is over its time is killed."""

    def warm(self) -> bool:
        """One run on ones; False where the file gives no sizes."""
        made_up: dict[str, Array] = {}
        for spec in self._inputs:
            array = made_up_input(spec, np.float32) if spec.shape else None
            if array is None:
                return False
            made_up[spec.name] = array
        try:
            self.run(made_up, (), {})
        except (BadTensor, ExecutionFailed):
            return False
        return True

    def unload(self) -> None:
        """See `contract.EngineSession.unload`."""
        self._net.clear()
        del self._net


def _name(spec: TensorSpec) -> str:
    return spec.name


def _cannot(message: str) -> BadTensor:
    return BadTensor(message, hint="the model cannot compute these inputs: change them")


def _checked(spec: TensorSpec, array: Array | None) -> Array:
    """The library reads what its layers expect, whatever it was given: sizes are held here too."""
    if array is None:
        raise BadTensor(f"input {spec.name!r} is missing", hint="give every input of the model")
    if array.dtype != np.float32:
        raise BadTensor(f"input {spec.name!r} is {array.dtype}, the model takes FP32")
    if not 1 <= array.ndim <= RANK_MAX or not array.size:
        raise _cannot(f"ncnn takes no input {spec.name!r} of shape {list(array.shape)}")
    if spec.shape is not None and array.shape != spec.shape:
        raise BadTensor(
            f"input {spec.name!r} has shape {list(array.shape)}, the model takes "
            f"{spec.shown_shape()}"
        )
    return np.ascontiguousarray(array)


def _extracted(extractor: Any, name: str) -> Array:
    code, mat = extractor.extract(name)
    if code == NO_MEMORY:
        raise ExecutionFailed("ncnn: out of memory")
    if code:
        raise _cannot(f"ncnn cannot compute {name!r}: it returns {code}")
    return np.array(mat, np.float32)


def _trial() -> NcnnSession:
    return load(TRIAL, {"threads": "1"}, {"bin": memoryview(TRIAL_WEIGHTS)})


_trial().warm()
