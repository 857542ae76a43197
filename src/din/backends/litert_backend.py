"""LiteRT (TensorFlow Lite) on the processor: whole .tflite files, no ONNX.

Importing this module runs a small file, since a worker has no files and the library asks the
machine for its cores once; that starts no thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

from din.backends.contract import Array
from din.backends.litert_trial import ANSWER, MODEL, question
from din.backends.making_up import made_up_input
from din.backends.options import check_own_options, threads_of
from din.backends.trial import check_answer
from din.domain.engine import EngineFacts, bounded
from din.domain.support import Engine, Lack, Needs, lacks
from din.domain.tensor import TensorSpec
from din.errors import BadModel, BadTensor, ExecutionFailed

_RUNTIMES: Final = ("ai_edge_litert", "tflite_runtime")
"""The runtime's name of today, and the one that boards still have."""


def _imported() -> tuple[Any, str]:
    """The library, and the package that brings it. Raises ImportError for the first one's."""
    there = (name for name in _RUNTIMES if PathFinder.find_spec(name) is not None)
    found = next(there, _RUNTIMES[0])
    return import_module(f"{found}.interpreter"), found.replace("_", "-")


library, _package = _imported()
NAME: Final = "litert"
_WORDS: Final[dict[type[Any], str]] = {
    np.float32: "FP32",
    np.float16: "FP16",
    np.float64: "FP64",
    np.bool_: "BOOL",
    np.uint8: "UINT8",
    np.uint16: "UINT16",
    np.uint32: "UINT32",
    np.uint64: "UINT64",
    np.int8: "INT8",
    np.int16: "INT16",
    np.int32: "INT32",
    np.int64: "INT64",
}
_OF_THIS_NODE: Final = re.compile(
    r"bad.?alloc|out of memory|cannot allocate|failed to allocate", re.IGNORECASE
)


def _version() -> str:
    try:
        return version(_package)
    except PackageNotFoundError:  # a maker's own build on a board
        return str(getattr(library, "__version__", ""))


VERSION: Final = _version()


def describe() -> EngineFacts:
    """See `contract.Backend.describe`."""
    check_answer(load(MODEL, {"threads": "1"}, {}), question(), ANSWER)
    return EngineFacts(backend=NAME, version=VERSION, devices=("CPU (XNNPACK)",))


def supports(needs: Needs) -> tuple[Lack, ...]:
    """See `contract.Backend.supports`."""
    return tuple(lacks(needs, Engine(NAME, VERSION)))


def load(
    model: bytes, options: Mapping[str, str], weights: Mapping[str, memoryview]
) -> LiteRtSession:
    """See `contract.Backend.load`; `model` is a .tflite file."""
    check_own_options(NAME, options)
    return open_session(model, options, weights, f"{NAME} {VERSION} (CPU)")


def open_session(
    model: bytes,
    options: Mapping[str, str],
    weights: Mapping[str, memoryview],
    engine: str,
    delegates: Sequence[Any] = (),
) -> LiteRtSession:
    """As `load`, with delegates that take operators over. Raises as `load`."""
    if weights:
        raise BadModel(f"a .tflite file is one file, {len(weights)} came with it")
    try:
        interpreter = library.Interpreter(
            model_content=model,
            num_threads=threads_of(options, len(os.sched_getaffinity(0))),
            experimental_delegates=list(delegates) or None,
        )
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError, MemoryError) as error:
        message = bounded(str(error)) or type(error).__name__
        if isinstance(error, MemoryError) or _OF_THIS_NODE.search(message):
            raise MemoryError(message) from error
        raise BadModel(
            f"LiteRT {VERSION} refuses the file: {message}",
            hint="compare its SHA256 with the original, or convert it with operators that LiteRT "
            "has itself",
        ) from error
    return LiteRtSession(interpreter, engine)


class LiteRtSession:
    """One interpreter. It has no way to end a run: `stop` cannot, and the worker is killed."""

    def __init__(self, interpreter: Any, engine: str) -> None:
        self._interpreter, self._engine = interpreter, engine
        self._taken = {each["name"]: each for each in interpreter.get_input_details()}
        self._given = {each["name"]: each for each in interpreter.get_output_details()}
        self._shapes = {name: tuple(map(int, each["shape"])) for name, each in self._taken.items()}
        self._inputs = tuple(map(_spec, self._taken.values()))
        self._outputs = tuple(map(_spec, self._given.values()))

    @property
    def engine(self) -> str:
        """Engine, version and device."""
        return self._engine

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
        for name in self._taken:
            if name not in inputs:
                raise BadTensor(f"input {name!r} is missing", hint="give every input of the model")
        try:
            self._resize(inputs)
            for name, each in self._taken.items():
                self._interpreter.set_tensor(each["index"], inputs[name])
            self._interpreter.invoke()
            return {name: self._output(name, targets) for name in wanted or self._given}
        except (ValueError, RuntimeError) as error:
            message = f"LiteRT: {bounded(str(error))}"
            if _OF_THIS_NODE.search(message):
                raise ExecutionFailed(message) from error
            raise BadTensor(
                message, hint="the model cannot compute these inputs: change them"
            ) from error

    def _resize(self, inputs: Mapping[str, Array]) -> None:
        """Only free sizes may differ from run to run; the library checks that. What fails leaves
        shapes as nobody knows them."""
        changed = [name for name in self._taken if inputs[name].shape != self._shapes.get(name)]
        for name in changed:
            self._shapes.pop(name, None)
            self._interpreter.resize_tensor_input(
                self._taken[name]["index"], inputs[name].shape, strict=True
            )
        if changed:
            self._interpreter.allocate_tensors()
            self._shapes |= {name: inputs[name].shape for name in changed}

    def _output(self, name: str, targets: Mapping[str, Array]) -> Array:
        index = self._given[name]["index"]
        target = targets.get(name)
        view: Array = self._interpreter.tensor(index)()
        if target is not None and target.shape == view.shape:
            np.copyto(target, view)
            return target
        return view.copy()  # while a view is held, the library moves nothing

    def stop(self) -> None:
        """Nothing: LiteRT runs to its end, and a worker that is over its time is killed."""

    def warm(self) -> bool:
        """One run on ones; free dims are guessed, so a failure proves nothing."""
        made_up: dict[str, Array] = {}
        for spec in self._inputs:
            array = made_up_input(spec, self._taken[spec.name]["dtype"])
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
        del self._interpreter


def _spec(detail: Mapping[str, Any]) -> TensorSpec:
    word = _WORDS.get(detail["dtype"])
    if word is None:
        kind = getattr(detail["dtype"], "__name__", detail["dtype"])
        raise BadModel(f"{detail['name']!r} is {kind}, which DIN carries to no slice of LiteRT")
    free = detail.get("shape_signature")
    shape = detail["shape"] if free is None or len(free) != len(detail["shape"]) else free
    return TensorSpec(
        str(detail["name"]), word, tuple(int(dim) if dim >= 0 else None for dim in shape)
    )


load(MODEL, {"threads": "1"}, {}).warm()
