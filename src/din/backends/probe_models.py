"""The models that a probe holds, opened one at a time, and the inputs that are made up for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnxruntime as ort

from din.backends.contract import Array, EngineSession
from din.backends.graph_wire import with_outputs
from din.backends.onnxruntime_backend import OnnxSession, open_session
from din.backends.onnxruntime_settings import session_options
from din.backends.probe_numbers import GUESSES, facts_of, guessed_shapes, made_up
from din.backends.registry import import_backend
from din.domain.encoding import SAMPLES_MAX
from din.domain.probe import ENGINES_OPTION, ProbeOrder, ProbePart, TensorFacts
from din.errors import BadTensor, ExecutionFailed


class Models:
    """Files by part. Used by one thread; `stop` may come from another."""

    def __init__(
        self,
        models: Sequence[bytes],
        weights: Mapping[str, memoryview],
        options: Mapping[str, str],
    ) -> None:
        session_options(options)  # a bad option fails while loading
        self.optimisation = options.get("optimisation", "all")
        self._models = tuple(models)
        self._weights = dict(weights)
        self._options = dict(options)
        self._running: EngineSession | None = None
        self._is_stopped = False

    def check(self, parts: Sequence[ProbePart]) -> None:
        """Begin an order over these parts. Raises BadTensor when there is not one model for
        each."""
        self._is_stopped = False
        if not parts or len(parts) != len(self._models):
            raise BadTensor(
                f"the order speaks of {len(parts)} models, the probe holds {len(self._models)}"
            )

    def model(self, part: int) -> bytes:
        """The ONNX file of one part."""
        return self._models[part]

    def open(
        self,
        part: int,
        optimisation: str,
        *,
        more_outputs: Sequence[str] = (),
        profile_prefix: str = "",
        is_timed: bool = False,
    ) -> OnnxSession:
        """A session of one part; the one before is closed. Raises BadModel, MemoryError."""
        self.close()
        options = self._options | {"optimisation": optimisation}
        if not is_timed:  # an arena doubles as it grows, and takes more than a worker may have
            options |= {"arena": "off"}
        settings = session_options(options)
        if profile_prefix:
            settings.enable_profiling = True
            settings.profile_file_prefix = profile_prefix
        model = self.model(part)
        if more_outputs:
            model = with_outputs(model, more_outputs)
        self._running = session = open_session(model, settings, self._weights)
        return session

    def open_on(self, part: int, backend: str) -> EngineSession:
        """A session of one part on another engine, as its slice would run; the one before is
        closed. Raises BadModel, UsageError, Unavailable, MemoryError."""
        self.close()
        options = {name: text for name, text in self._options.items() if name != ENGINES_OPTION}
        self._running = import_backend(backend).load(self.model(part), options, self._weights)
        return self._running

    def run(
        self, session: EngineSession, inputs: Mapping[str, Array], wanted: Sequence[str] = ()
    ) -> dict[str, Array]:
        """One run; the outputs are valid until the next. Raises BadTensor, ExecutionFailed."""
        if self._is_stopped:
            raise ExecutionFailed("the probe was stopped")
        return session.run(inputs, wanted, {})

    def inputs_for(
        self, session: OnnxSession, order: ProbeOrder, given: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The given inputs and, for those missing, the first made-up ones that the model computes.

        Raises BadTensor when none of the guesses can be computed.
        """
        known = {spec.name: spec for spec in session.inputs}
        for name in (*given, *order.shapes):
            if name not in known:
                raise BadTensor(
                    f"the model has no input {name!r}",
                    hint=f"its inputs are {', '.join(known) or 'none'}",
                )
        missing = [spec for spec in session.inputs if spec.name not in given]
        # What is given takes part, so that symbols it shares with others get its sizes.
        shapes = order.shapes | {name: array.shape for name, array in given.items()}
        tried: list[dict[str, tuple[int, ...]]] = []
        fault: BadTensor | None = None
        for guess in GUESSES:
            found = guessed_shapes(session.inputs, shapes, guess)
            if found in tried:
                continue
            tried.append(found)
            try:
                inputs = dict(given) | made_up(missing, found, order.seed)
                self.run(session, inputs)
            except BadTensor as error:
                fault = error
            else:
                return inputs
        reason = fault.message if fault is not None else "it takes none"
        raise BadTensor(
            f"the model computes none of the made-up inputs ({len(tried)} shapes were tried): "
            f"{reason}",
            hint="give shapes (--shape NAME=1,3,224,224) or inputs of your own (--input FILE.npz)",
        )

    def samples_for(
        self, session: OnnxSession, order: ProbeOrder, given: Mapping[str, Array]
    ) -> Iterator[dict[str, Array]]:
        """Inputs of one run after the other: those given, or made up by rising seeds. Raises
        BadTensor as `inputs_for`, and for more than SAMPLES_MAX."""
        count = _samples_of(order, given)
        own = {name: array[0] if order.is_stacked else array for name, array in given.items()}
        first = self.inputs_for(session, order, own)
        yield first
        missing = [spec for spec in session.inputs if spec.name not in given]
        shapes = {spec.name: first[spec.name].shape for spec in missing}
        for number in range(1, count):
            if order.is_stacked:
                own = {name: array[number] for name, array in given.items()}
            yield own | made_up(missing, shapes, order.seed + number)

    @staticmethod
    def facts(session: OnnxSession, inputs: Mapping[str, Array]) -> tuple[TensorFacts, ...]:
        """What a report says of its inputs."""
        return tuple(facts_of(each.name, each.dtype, inputs[each.name]) for each in session.inputs)

    def stop(self) -> None:
        """End the present run, and begin no other one."""
        self._is_stopped = True
        if self._running is not None:
            self._running.stop()

    def close(self) -> None:
        """Give the session's memory back."""
        self._running = None


def _samples_of(order: ProbeOrder, given: Mapping[str, Array]) -> int:
    count = order.samples
    if order.is_stacked:
        counts = {array.shape[0] if array.ndim else 0 for array in given.values()}
        if len(counts) != 1:
            raise BadTensor(
                f"the given inputs have {sorted(counts)} samples",
                hint="the first axis of each counts the samples: the same number in all",
            )
        (count,) = counts
    if not 1 <= count <= SAMPLES_MAX:
        raise BadTensor(f"{count} samples are asked for", hint=f"from 1 to {SAMPLES_MAX} at once")
    return count


def engine_words() -> str:
    """Which engine it was."""
    return f"onnxruntime {ort.__version__}"
