"""MNN on the processor. Slices are ONNX; MNN's own converter makes its form of them in the worker,
in a folder of the worker's own, since converter and loader know files by their paths only.

`MNN.tools` is never imported: it installs a package of others as it is imported, and reports each
use to its maker.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from din.backends.contract import NUMPY_TYPES, Array
from din.backends.graph_signature import Signature, signature_of
from din.backends.graph_wire import with_weights
from din.backends.making_up import made_up_input
from din.backends.options import check_own_options, threads_of
from din.domain.engine import EngineFacts, bounded
from din.domain.support import Engine, Lack, Needs, lacks
from din.domain.tensor import TensorSpec
from din.errors import BadModel, BadTensor, DinError, ExecutionFailed, Unavailable

sys.modules.setdefault("MNN.tools", None)  # pyright: ignore[reportArgumentType]

library: Any = import_module("MNN")
expressions: Any = import_module("MNN.expr")
networks: Any = import_module("MNN.nn")
converter: Any = import_module("_tools")

NAME: Final = "mnn"
VERSION: Final = str(library.version())
MODEL_BYTES_MAX: Final = 100 * 1024 * 1024
"""The ONNX file and what is made of it lie beside each other in the worker's folder."""
_FORMS: Final[dict[str, tuple[Any, type[Any]]]] = {
    "FP32": (expressions.float, np.float32),
    "INT32": (expressions.int, np.int32),
    "INT64": (expressions.int, np.int32),
    "BOOL": (expressions.int, np.int32),
    "UINT8": (expressions.uint8, np.uint8),
    "INT8": (expressions.int8, np.int8),
}
"""How MNN holds each: it has no whole numbers of 64 bits."""
_OF_THIS_NODE: Final = re.compile(r"bad.?alloc|out of memory|cannot allocate", re.IGNORECASE)


def describe() -> EngineFacts:
    """See `contract.Backend.describe`."""
    return EngineFacts(backend=NAME, version=VERSION, devices=("CPU",))


def supports(needs: Needs) -> tuple[Lack, ...]:
    """See `contract.Backend.supports`."""
    return tuple(lacks(needs, Engine(NAME, VERSION)))


def load(model: bytes, options: Mapping[str, str], weights: Mapping[str, memoryview]) -> MnnSession:
    """See `contract.Backend.load`."""
    check_own_options(NAME, options)
    size = len(model) + sum(map(len, weights.values()))
    if size > MODEL_BYTES_MAX:
        raise BadModel(
            f"the slice has {size} bytes with its weights, MNN is given {MODEL_BYTES_MAX}",
            hint="cut the model into more slices",
        )
    signature = signature_of(model)
    for spec in (*signature.inputs, *signature.outputs):
        if spec.dtype not in _FORMS:
            raise BadModel(
                f"{spec.name!r} is {spec.dtype}, and MNN is given {', '.join(_FORMS)}",
                hint="place the slice on onnxruntime",
            )
    threads = threads_of(options, len(os.sched_getaffinity(0)))
    try:
        with tempfile.TemporaryDirectory(prefix="din-mnn-") as folder:
            made = _converted(Path(folder), with_weights(model, weights))
            return MnnSession(_loaded(made, signature, threads), signature)
    except DinError:
        raise
    except OSError as error:
        raise Unavailable(
            f"MNN's converter has no folder to work in: {error.strerror or error}",
            hint="it needs namespaces (sandbox level 2): see `din doctor`",
        ) from error
    except Exception as error:  # the library raises classes of its own
        message = bounded(str(error)) or type(error).__name__
        if isinstance(error, MemoryError) or _OF_THIS_NODE.search(message):
            raise MemoryError(message) from error
        raise _refused(message) from error


def _converted(folder: Path, model: bytes) -> Path:
    source, made = folder / "model.onnx", folder / "model.mnn"
    source.write_bytes(model)
    words = ["mnnconvert", "-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(made)]
    converter.mnnconvert([*words, "--bizCode", "din", "--keepInputFormat=1"])
    if not made.exists() or not made.stat().st_size:
        raise _refused("its converter makes nothing of it")
    source.unlink()
    return made


def _loaded(made: Path, signature: Signature, threads: int) -> Any:
    """FP32 is computed as FP32: slices have to agree with those of other engines."""
    how = {"backend": 0, "precision": "high", "numThread": threads}
    manager = networks.create_runtime_manager((how,))
    names = [[each.name for each in side] for side in signature]
    return networks.load_module_from_file(str(made), *names, runtime_manager=manager)


def _refused(message: str) -> BadModel:
    return BadModel(
        f"MNN {VERSION} refuses the model: {message}",
        hint="place the slice on onnxruntime, or cut the model so that this operator is in a slice "
        "that runs there",
    )


class MnnSession:
    """One converted model. It has no way to end a run: `stop` cannot, and the worker is killed."""

    def __init__(self, module: Any, signature: Signature) -> None:
        self._module = module
        self._inputs, self._outputs = signature

    @property
    def engine(self) -> str:
        """Engine, version and device."""
        return f"{NAME} {VERSION} (CPU)"

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As the model declares them."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As the model declares them."""
        return self._outputs

    def run(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See `contract.Session.run`."""
        del targets
        given = [_variable(spec, inputs.get(spec.name)) for spec in self._inputs]
        try:
            made = self._module.forward(given)
            found = {
                spec.name: _array(spec, variable)
                for spec, variable in zip(self._outputs, made, strict=True)
                if not wanted or spec.name in wanted
            }
        except DinError:
            raise
        except Exception as error:  # the library raises classes of its own
            message = f"MNN: {bounded(str(error)) or type(error).__name__}"
            if isinstance(error, MemoryError) or _OF_THIS_NODE.search(message):
                raise ExecutionFailed(message) from error
            raise _cannot(message) from error
        return found

    def stop(self) -> None:
        """Nothing: MNN runs to its end, and a worker that is over its time is killed."""

    def warm(self) -> bool:
        """One run on ones; free dims are guessed, so a failure proves nothing."""
        made_up: dict[str, Array] = {}
        for spec in self._inputs:
            array = made_up_input(spec, NUMPY_TYPES[spec.dtype].type)
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
        del self._module


def _cannot(message: str) -> BadTensor:
    return BadTensor(message, hint="the model cannot compute these inputs: change them")


def _variable(spec: TensorSpec, array: Array | None) -> Any:
    if array is None:
        raise BadTensor(f"input {spec.name!r} is missing", hint="give every input of the model")
    if array.dtype != NUMPY_TYPES[spec.dtype]:
        raise BadTensor(f"input {spec.name!r} is {array.dtype}, the model takes {spec.dtype}")
    if not array.size:
        raise _cannot(f"input {spec.name!r} has no elements, which MNN does not compute")
    form, kind = _FORMS[spec.dtype]
    held = np.ascontiguousarray(array, kind)
    if spec.dtype == "INT64" and not (held == array).all():
        raise _cannot(f"input {spec.name!r} holds numbers beyond 32 bits, and MNN has no others")
    return expressions.const(held, list(array.shape), expressions.NCHW, form)


def _array(spec: TensorSpec, variable: Any) -> Array:
    if variable.data_format != expressions.NCHW:
        variable = expressions.convert(variable, expressions.NCHW)
    found = variable.read()
    if found is None:
        raise _cannot(f"MNN: it computes no {spec.name!r}")
    return (
        np.asarray(found).reshape(tuple(variable.shape)).astype(NUMPY_TYPES[spec.dtype], copy=False)
    )
