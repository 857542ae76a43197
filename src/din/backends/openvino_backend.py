"""OpenVINO on the processor, or on an Intel GPU or NPU where the library finds one.

Importing this module loads the library's plugin for the processor and its reader of ONNX, since a
worker has no files; it starts no thread. The package's own reporting of use is never imported.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from din.backends.contract import Array
from din.backends.graph_wire import inputs_of, outputs_of, with_weights
from din.backends.making_up import made_up_input
from din.backends.options import check_own_options, threads_of
from din.backends.trial import MODEL
from din.domain.engine import EngineFacts, bounded
from din.domain.support import Engine, Lack, Needs, lacks
from din.domain.tensor import TensorSpec
from din.errors import BadModel, BadTensor, DinError, ExecutionFailed, Unavailable

# These are tools for developers: they count uses and send the count, and hold a thread for that.
for _name in ("openvino_telemetry", "openvino.tools"):
    sys.modules.setdefault(_name, None)  # pyright: ignore[reportArgumentType]

import openvino as ov  # noqa: E402
from openvino.frontend import FrontEndManager  # noqa: E402

NAME: Final = "openvino"
MODEL_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024 - 1
"""One protobuf message, weights included: they have to be in it."""

# Element type -> (DIN word, numpy type that carries the bits).
_TYPES: Final[dict[str, tuple[str, type[Any]]]] = {
    "f32": ("FP32", np.float32),
    "f16": ("FP16", np.float16),
    "f64": ("FP64", np.float64),
    "bf16": ("BF16", np.uint16),
    "f8e4m3": ("FP8", np.uint8),
    "f8e5m2": ("FP8", np.uint8),
    "boolean": ("BOOL", np.bool_),
    "u8": ("UINT8", np.uint8),
    "u16": ("UINT16", np.uint16),
    "u32": ("UINT32", np.uint32),
    "u64": ("UINT64", np.uint64),
    "i8": ("INT8", np.int8),
    "i16": ("INT16", np.int16),
    "i32": ("INT32", np.int32),
    "i64": ("INT64", np.int64),
}
_RAW: Final = frozenset(("bf16", "f8e4m3", "f8e5m2"))
"""numpy has no type for these: bits are copied."""
_OF_THIS_NODE: Final = re.compile(
    r"bad.?alloc|out of memory|cannot allocate|failed to allocate|can't allocate", re.IGNORECASE
)

CORE: Final = ov.Core()
_READER: Final = FrontEndManager().load_by_framework("onnx")
"""`Core.read_model` looks at the files of all readers, each time."""
VERSION: Final = str(ov.get_version()).partition("-")[0]


def _read(model: bytes) -> ov.Model:
    return _READER.convert(_READER.load(io.BytesIO(model)))


def _load_plugins() -> None:
    """While there are files."""
    CORE.get_versions("CPU")
    CORE.get_property("CPU", "FULL_DEVICE_NAME")
    _read(MODEL)


_load_plugins()


def describe() -> EngineFacts:
    """See `contract.Backend.describe`."""
    devices = [
        f"{device}: {CORE.get_property(device, 'FULL_DEVICE_NAME')}"
        for device in CORE.available_devices
    ]
    if not devices:
        trouble = "the library finds no device, not even the processor"
        return EngineFacts(backend=NAME, version=VERSION, trouble=trouble)
    return EngineFacts(backend=NAME, version=VERSION, devices=tuple(map(bounded, devices)))


def supports(needs: Needs) -> tuple[Lack, ...]:
    """See `contract.Backend.supports`."""
    return tuple(lacks(needs, Engine(NAME, VERSION)))


def load(
    model: bytes, options: Mapping[str, str], weights: Mapping[str, memoryview]
) -> OpenVinoSession:
    """See `contract.Backend.load`."""
    check_own_options(NAME, options)
    device = options.get("device", "CPU")
    if device != "CPU" and device not in CORE.available_devices:
        raise Unavailable(
            f"OpenVINO {VERSION} finds no {device} on this node, but {CORE.available_devices}",
            hint="install its driver, or leave the option device out",
        )
    if not outputs_of(model):
        raise BadModel("OpenVINO is given a model without outputs", hint="export the model again")
    size = len(model) + sum(map(len, weights.values()))
    if size > MODEL_BYTES_MAX:
        raise BadModel(
            f"the slice has {size} bytes with its weights, OpenVINO takes {MODEL_BYTES_MAX}",
            hint="cut the model into more slices",
        )
    try:
        graph = _read(with_weights(model, weights))
        compiled = CORE.compile_model(graph, device, _settings(options, device))
    except DinError:
        raise
    except Exception as error:  # readers and plugins raise classes of their own
        message = clean_message(error)
        if isinstance(error, MemoryError) or _OF_THIS_NODE.search(message):
            raise MemoryError(message) from error
        raise BadModel(
            f"OpenVINO {VERSION} refuses the model: {message}",
            hint="place the slice on onnxruntime, or cut the model so that this operator is in a "
            "slice that runs there",
        ) from error
    return OpenVinoSession(compiled, model, device)


def _settings(options: Mapping[str, str], device: str) -> dict[str, Any]:
    """FP32 is computed as FP32, also where the processor is faster at less: slices have to agree
    with those of other engines."""
    found: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
    if device == "CPU":
        found |= {
            "INFERENCE_NUM_THREADS": threads_of(options, len(os.sched_getaffinity(0))),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        }
    return found


def clean_message(error: Exception) -> str:
    """The library's message in one line without its source paths, bounded."""
    text = re.sub(r"Exception from \S+:\d+:|failed at \S+:\d+:|To facilitate .*", "", str(error))
    return bounded(text) or type(error).__name__


class OpenVinoSession:
    """One compiled model and its one request."""

    def __init__(self, compiled: ov.CompiledModel, model: bytes, device: str) -> None:
        self._compiled, self._device = compiled, device
        self._request = compiled.create_infer_request()
        self._in_ports = {
            name: _named(compiled.inputs, position, name)
            for position, name in enumerate(inputs_of(model))
        }
        names = outputs_of(model)
        if len(names) != len(compiled.outputs):
            raise BadModel(
                f"OpenVINO {VERSION} makes {len(compiled.outputs)} outputs of {len(names)}",
                hint="place the slice on onnxruntime",
            )
        self._out_ports = dict(zip(names, compiled.outputs, strict=True))
        self._inputs = tuple(_spec(name, port) for name, port in self._in_ports.items())
        self._outputs = tuple(_spec(name, port) for name, port in self._out_ports.items())
        self._is_stopped = False

    @property
    def engine(self) -> str:
        """Engine, version and device."""
        return f"openvino {VERSION} ({self._device})"

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
        """See `contract.Session.run`. What is returned is the library's own memory."""
        del targets
        self._is_stopped = False
        for name in self._in_ports:
            if name not in inputs:
                raise BadTensor(f"input {name!r} is missing", hint="give every input of the model")
        try:
            for name, port in self._in_ports.items():
                self._request.set_tensor(port, _tensor(name, port, inputs[name]))
            self._request.start_async()
            self._request.wait()
        except RuntimeError as error:
            raise self._fault(error) from error
        return {name: self._output(name) for name in wanted or self._out_ports}

    def _fault(self, error: Exception) -> BadTensor | ExecutionFailed:
        message = f"OpenVINO: {clean_message(error)}"
        if self._is_stopped:
            return ExecutionFailed("OpenVINO: the run was stopped")
        if _OF_THIS_NODE.search(message):
            return ExecutionFailed(message)
        return BadTensor(message, hint="the model cannot compute these inputs: change them")

    def _output(self, name: str) -> Array:
        port = self._out_ports[name]
        data: Array = self._request.get_tensor(port).data
        kind = port.get_element_type().get_type_name()
        return data.view(_TYPES[kind][1]) if kind in _RAW else data

    def stop(self) -> None:
        """End the present run between two operators."""
        self._is_stopped = True
        self._request.cancel()

    def warm(self) -> bool:
        """One run on ones; free dims are guessed, so a failure proves nothing."""
        made_up: dict[str, Array] = {}
        for spec in self._inputs:
            kind = self._in_ports[spec.name].get_element_type().get_type_name()
            array = made_up_input(spec, _TYPES[kind][1])
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
        self._in_ports, self._out_ports = {}, {}
        del self._request, self._compiled


def _named(ports: Sequence[Any], position: int, name: str) -> Any:
    for port in ports:
        if name in port.get_names():
            return port
    if position < len(ports) and not ports[position].get_names():
        return ports[position]
    raise BadModel(
        f"OpenVINO {VERSION} does not know the input {name!r} of the model",
        hint="place the slice on onnxruntime",
    )


def _spec(name: str, port: Any) -> TensorSpec:
    kind = port.get_element_type().get_type_name()
    if kind not in _TYPES:
        raise BadModel(
            f"{name!r} is {kind}, which DIN carries to no slice of OpenVINO",
            hint="place the slice on onnxruntime",
        )
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return TensorSpec(name, _TYPES[kind][0], None)
    dims = tuple(dim.get_length() if dim.is_static else None for dim in shape)
    return TensorSpec(name, _TYPES[kind][0], dims)


def _tensor(name: str, port: Any, array: Array) -> ov.Tensor:
    kind = port.get_element_type()
    word = kind.get_type_name()
    if array.dtype != _TYPES[word][1]:
        raise BadTensor(f"input {name!r} is {array.dtype}, the model takes {_TYPES[word][0]}")
    try:
        if word in _RAW:
            tensor = ov.Tensor(kind, ov.Shape(array.shape))
            tensor.data.view(array.dtype)[...] = array
            return tensor
        is_shared = array.flags.writeable and array.flags.c_contiguous
        return ov.Tensor(array if is_shared else np.array(array, order="C"), shared_memory=True)
    except RuntimeError as error:
        raise BadTensor(f"input {name!r}: {clean_message(error)}") from error
