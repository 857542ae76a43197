"""ONNX Runtime, with the execution provider that is asked for.

The library falls back to the processor without a word where a provider is missing or does not
start; here that is refused, or told where `fallback` allows it (`onnxruntime_settings`).

ORT_DISABLE_TELEMETRY must be in the environment before this module is imported: the library starts
a thread and writes files otherwise, and a process with threads must not fork.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime as ort

from din.backends.contract import Array, Lasting
from din.backends.making_up import made_up_input
from din.backends.onnxruntime_settings import (
    SUFFIX,
    Providers,
    chosen_providers,
    given_up,
    session_options,
)
from din.domain.engine import EngineFacts
from din.domain.support import ONNXRUNTIME, Engine, Lack, Needs, lacks
from din.domain.tensor import BYTES, Dim, TensorSpec, is_symbol
from din.errors import BadModel, BadTensor, ExecutionFailed

MODEL_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024 - 1
"""One protobuf message cannot be larger."""
MESSAGE_CHARACTERS_MAX: Final = 600
BINDINGS_MAX: Final = 64
"""A new binding costs up to 100 us of a run, and the same few slots come back all the time."""

# ONNX Runtime's type text -> (DIN word, numpy type that carries the bits, ONNX element type).
_TYPES: Final[dict[str, tuple[str, type[Any], int]]] = {
    "tensor(float)": ("FP32", np.float32, 1),
    "tensor(uint8)": ("UINT8", np.uint8, 2),
    "tensor(int8)": ("INT8", np.int8, 3),
    "tensor(uint16)": ("UINT16", np.uint16, 4),
    "tensor(int16)": ("INT16", np.int16, 5),
    "tensor(int32)": ("INT32", np.int32, 6),
    "tensor(int64)": ("INT64", np.int64, 7),
    "tensor(string)": (BYTES, np.object_, 8),
    "tensor(bool)": ("BOOL", np.bool_, 9),
    "tensor(float16)": ("FP16", np.float16, 10),
    "tensor(double)": ("FP64", np.float64, 11),
    "tensor(uint32)": ("UINT32", np.uint32, 12),
    "tensor(uint64)": ("UINT64", np.uint64, 13),
    "tensor(bfloat16)": ("BF16", np.uint16, 16),
    "tensor(float8e4m3fn)": ("FP8", np.uint8, 17),
    "tensor(float8e4m3fnuz)": ("FP8", np.uint8, 18),
    "tensor(float8e5m2)": ("FP8", np.uint8, 19),
    "tensor(float8e5m2fnuz)": ("FP8", np.uint8, 20),
}

# What other nodes may not fail of, in the engine's words.
_OF_THIS_NODE: Final = re.compile(
    r"failed to allocate|bad.?alloc|out of memory|cannot allocate|terminate flag", re.IGNORECASE
)

ort.set_default_logger_severity(4)


def describe() -> EngineFacts:
    """See `contract.Backend.describe`."""
    devices = tuple(each.removesuffix(SUFFIX) for each in ort.get_available_providers())
    return EngineFacts(backend=ONNXRUNTIME, version=ort.__version__, devices=devices)


def supports(needs: Needs) -> tuple[Lack, ...]:
    """See `contract.Backend.supports`."""
    return tuple(lacks(needs, Engine(ONNXRUNTIME, ort.__version__)))


def load(
    model: bytes, options: Mapping[str, str], weights: Mapping[str, memoryview] | None = None
) -> OnnxSession:
    """Load a model; the engine copies of `weights` what it needs. Raises BadModel with the
    engine's own words, UsageError for a bad option, MemoryError where this node has too little:
    another one may have enough."""
    return open_session(model, session_options(options), weights, chosen_providers(options))


def open_session(
    model: bytes,
    settings: ort.SessionOptions,
    weights: Mapping[str, memoryview] | None = None,
    providers: Providers | None = None,
) -> OnnxSession:
    """As `load`, with settings that have been made already."""
    providers = providers or Providers()
    if not 0 < len(model) <= MODEL_BYTES_MAX:
        raise BadModel(
            f"the model file has {len(model)} bytes",
            hint=f"an ONNX file has between 1 and {MODEL_BYTES_MAX} bytes",
        )
    try:
        if weights:
            settings.add_external_initializers_from_files_in_memory(
                list(weights), list(weights.values()), [len(each) for each in weights.values()]
            )
        session = ort.InferenceSession(
            model,
            settings,
            providers=list(providers.chosen),
            provider_options=[dict(each) for each in providers.options],
            enable_fallback=0,
        )
    except Exception as error:  # the library raises a dozen unrelated classes
        if _is_of_this_node(error):
            raise MemoryError(clean_message(error)) from error
        raise BadModel(
            f"ONNX Runtime {ort.__version__} refuses the model: {clean_message(error)}",
            hint="check the file with onnx.checker; newer opsets need a newer ONNX Runtime, and "
            "operators of your own do not run here",
        ) from error
    # It keeps the whole file to fall back to other providers, which is not wanted here.
    vars(session)["_model_bytes"] = None
    return OnnxSession(session, given_up(providers, session.get_providers()))


def clean_message(error: Exception) -> str:
    """The engine's message in one line without its source paths, bounded."""
    text = " ".join(str(error).split())
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(
        r"/onnxruntime_src/\S+ (?:\S+ )*?onnxruntime::\S+?\([^)]*\)(?: const)? ?", "", text
    )
    text = re.sub(r"/onnxruntime_src/\S*", "", text)
    text = "".join(each if each.isprintable() else "?" for each in text).strip()
    if len(text) > MESSAGE_CHARACTERS_MAX:
        return text[: MESSAGE_CHARACTERS_MAX - 1] + "…"
    return text or type(error).__name__


class OnnxSession:
    """One ONNX Runtime session."""

    def __init__(self, session: ort.InferenceSession, given_up: tuple[str, ...] = ()) -> None:
        """`given_up`: providers that were asked for and do not run."""
        self._given_up = given_up
        self._session = session
        self._providers = tuple(session.get_providers())
        self._input_types = {each.name: each.type for each in session.get_inputs()}
        self._output_types = {each.name: each.type for each in session.get_outputs()}
        self._inputs = tuple(_spec(each) for each in session.get_inputs())
        self._outputs = tuple(_spec(each) for each in session.get_outputs())
        self._output_names = [each.name for each in self._outputs]
        has_text = any(each.dtype == BYTES for each in (*self._inputs, *self._outputs))
        self._run = self._run_plain if has_text else self._run_bound
        self._run_options = _run_options()
        self._bindings: dict[tuple[object, ...], Any] = {}
        self._bound: dict[tuple[int, int], _Bound] = {}
        """By the mappings, where they last: it spares asking each array for its address."""
        self._last_values: list[Any] = []
        self._may_bind_targets = True

    @property
    def engine(self) -> str:
        """Engine, version and providers."""
        providers = [each.removesuffix(SUFFIX) for each in self._providers]
        lost = f"; NOT {', '.join(self._given_up)}, which was asked for" if self._given_up else ""
        return f"onnxruntime {ort.__version__} ({', '.join(providers)}{lost})"

    def unload(self) -> None:
        """See `contract.EngineSession.unload`."""
        self._forget_bindings()
        self._last_values = []
        del self._session

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As the model declares them."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As the model declares them."""
        return self._outputs

    def end_profiling(self) -> None:
        """Write what was profiled, where the settings asked for that."""
        self._session.end_profiling()

    def stop(self) -> None:
        """End the present run between two operators."""
        self._run_options.terminate = True

    def run(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See `contract.Session.run`."""
        if self._run_options.terminate:
            self._run_options = _run_options()
        names = list(wanted) or self._output_names
        if not self._may_bind_targets:
            targets = {}
        try:
            return self._run(inputs, names, targets)
        except Exception as error:
            if targets and "computed output shape" in str(error):
                # The declared shapes lie (one symbol for two sizes): never trust them again.
                self._may_bind_targets = False
                self._forget_bindings()
                return self.run(inputs, wanted, {})
            self._forget_bindings()
            raise _run_error(error) from error

    def warm(self) -> bool:
        """One run on ones; free dims are guessed, so a failure proves nothing."""
        made_up: dict[str, Array] = {}
        for spec in self._inputs:
            array = made_up_input(spec, _TYPES[self._input_types[spec.name]][1])
            if array is None:
                return False
            made_up[spec.name] = array
        try:
            self.run(made_up, (), {})
        except (BadTensor, ExecutionFailed):
            return False
        return True

    def _run_plain(
        self, inputs: Mapping[str, Array], names: list[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        del targets
        feeds = {name: _as_text(name, array) for name, array in inputs.items()}
        results: Any = self._session.run(names, feeds, self._run_options)
        return {
            name: _as_bytes(array) if array.dtype == np.object_ else array
            for name, array in zip(names, results, strict=True)
        }

    def _run_bound(
        self, inputs: Mapping[str, Array], names: list[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        self._last_values = []
        bound = self._bound.get((id(inputs), id(targets)))
        if bound is None or bound.names != names:
            bound = self._bind(inputs, names, targets)
        binding = bound.binding
        self._session.run_with_iobinding(binding, self._run_options)
        if len(targets) == len(names):
            return {name: targets[name] for name in names}
        self._last_values = binding.get_outputs()
        return {
            name: targets[name] if name in targets else _view(value, self._output_types[name])
            for name, value in zip(names, self._last_values, strict=True)
        }

    def _forget_bindings(self) -> None:
        self._bindings.clear()
        self._bound.clear()

    def _bind(
        self, inputs: Mapping[str, Array], names: list[str], targets: Mapping[str, Array]
    ) -> _Bound:
        bound = _Bound(inputs, targets, names, self._binding(inputs, names, targets))
        may_last = isinstance(inputs, Lasting) and isinstance(targets, Lasting)
        # Outputs that the engine allocates stay inside the binding: keep it only without any.
        if may_last and len(targets) == len(names):
            if len(self._bound) >= BINDINGS_MAX:
                del self._bound[next(iter(self._bound))]
            self._bound[id(inputs), id(targets)] = bound
        return bound

    def _binding(
        self, inputs: Mapping[str, Array], names: list[str], targets: Mapping[str, Array]
    ) -> Any:
        given = tuple((name, _address(array), array.shape) for name, array in inputs.items())
        bound = tuple((name, _address(array), array.shape) for name, array in targets.items())
        key = (given, bound, tuple(names))
        known = self._bindings.get(key)
        if known is not None:
            return known
        binding = self._session.io_binding()
        for name, address, shape in given:
            kind = _TYPES[self._input_types[name]][2]
            binding.bind_input(name, "cpu", 0, kind, list(shape), address)
        places = {name: (address, shape) for name, address, shape in bound}
        for name in names:
            if name not in places:
                binding.bind_output(name, "cpu")
                continue
            address, shape = places[name]
            kind = _TYPES[self._output_types[name]][2]
            binding.bind_output(name, "cpu", 0, kind, list(shape), address)
        if len(places) == len(names):
            if len(self._bindings) >= BINDINGS_MAX:
                del self._bindings[next(iter(self._bindings))]
            self._bindings[key] = binding
        return binding


class _Bound(NamedTuple):
    """A binding, and for what; what is held here has its `id` for itself."""

    inputs: Mapping[str, Array]
    targets: Mapping[str, Array]
    names: list[str]
    binding: Any


def _run_options() -> ort.RunOptions:
    options = ort.RunOptions()
    # The default, but said aloud: the library looks it up on each run, and a look-up that finds
    # nothing costs 28 us, more than the rest of the call.
    options.add_run_config_entry("gpu_graph_id", "0")
    return options


def _spec(argument: Any) -> TensorSpec:
    kind = _TYPES.get(argument.type)
    if kind is None:
        raise BadModel(
            f"{argument.name!r} is {argument.type}, which is no tensor that DIN can carry",
            hint="remove operators such as ZipMap, or convert the value to a tensor in the model",
        )
    dims = argument.shape
    if not dims:
        # The library shows a scalar and an unknown rank alike; it checks the real one itself.
        return TensorSpec(argument.name, kind[0], None)
    return TensorSpec(argument.name, kind[0], tuple(_dim(each) for each in dims))


def _dim(shown: Any) -> Dim:
    if isinstance(shown, str):
        return shown if is_symbol(shown) else None
    return shown if isinstance(shown, int) and shown >= 0 else None


def _run_error(error: Exception) -> BadTensor | ExecutionFailed:
    """Whose fault a failed run is. The engine's kinds do not tell (a Reshape to a wrong size and a
    full memory are both FAIL, and a bound run has none at all): what the processor computes fails
    alike on every node, unless this one has no memory left or the run was stopped."""
    if isinstance(error, BadTensor):
        return error
    message = f"ONNX Runtime: {clean_message(error)}"
    if _is_of_this_node(error):
        return ExecutionFailed(message)
    return BadTensor(message, hint="the model cannot compute these inputs: change them")


def _is_of_this_node(error: Exception) -> bool:
    return isinstance(error, MemoryError) or _OF_THIS_NODE.search(str(error)) is not None


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _view(value: Any, type_text: str) -> Array:
    _, numpy_type, _ = _TYPES[type_text]
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, numpy_type)
    nbytes = count * np.dtype(numpy_type).itemsize
    memory: Any = (ctypes.c_char * nbytes).from_address(value.data_ptr())
    return np.frombuffer(memory, numpy_type).reshape(shape)


def _as_text(name: str, array: Array) -> Array:
    if array.dtype != np.object_:
        return array
    text = np.empty(array.shape, np.object_)
    flat = text.reshape(-1)
    for position, element in enumerate(array.reshape(-1)):
        try:
            flat[position] = bytes(element).decode()
        except UnicodeDecodeError as error:
            raise BadTensor(
                f"element {position} of input {name!r} is not UTF-8: {error.reason}",
                hint="ONNX Runtime takes text; send UTF-8",
            ) from error
    return text


def _as_bytes(array: Array) -> Array:
    encoded = np.empty(array.shape, np.object_)
    flat = encoded.reshape(-1)
    for position, element in enumerate(array.reshape(-1)):
        flat[position] = str(element).encode(errors="surrogateescape")
    return encoded
