"""ONNX's own backend test suite: what plain ONNX Runtime answers, models cut by DIN answer too.

`python -m din.bench.backend_cases` prints the cases that plain ONNX Runtime fails, one a line,
below the versions that they hold for: the ratchet file of the tests.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, load, numpy_helper

from din.bench.composed import Composed, engine
from din.slicing.operators import OperatorGraph
from din.slicing.slicer import Analysed, analyse
from din.slicing.together import kept_together

STORED_KINDS: Final = ("simple", "pytorch-converted", "pytorch-operator")
"""Kinds of cases that lie in the package as files; those of kind `node` are made by code."""

Run = Callable[[Sequence[Any]], list[Any]]
"""Values for the inputs of the file, in its order, to values of its outputs."""
Map = dict[int, int]


class Case(NamedTuple):
    """A model, and what it answers to which inputs."""

    name: str
    model: ModelProto
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


def cases() -> list[Case]:
    """All cases but the nine whole models, in the order of their names."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases of types that numpy warns about
        made = [
            Case(each.name, each.model, each.data_sets, each.rtol, each.atol)
            for each in load_model_tests(kind="node")
            if each.model is not None and each.data_sets is not None
        ]
    for kind in STORED_KINDS:
        for each in load_model_tests(kind=kind):
            assert each.model_dir is not None, "these kinds lie in the package"
            made.append(_stored(each.name, Path(each.model_dir), each.rtol, each.atol))
    return sorted(made, key=lambda each: each.name)


def plainly(model: ModelProto) -> Run:
    """As ONNX Runtime runs the file."""
    session = engine(model.SerializeToString())
    names = [each.name for each in session.get_inputs()]
    return lambda values: session.run(None, dict(zip(names, values, strict=False)))


def sliced(model: ModelProto, map_of: Callable[[Analysed], Map]) -> Run:
    """As DIN runs it in the slices of a map."""
    found = analyse(model.SerializeToString(), {}, is_served=False)
    composed = Composed(found, map_of(found))
    names = [each.name for each in model.graph.input]
    outputs = [each.name for each in model.graph.output]

    def run(values: Sequence[Any]) -> list[Any]:
        answer = composed.run(dict(zip(names, values, strict=False)))
        return [answer[name] for name in outputs]

    return run


def whole(found: Analysed) -> Map:
    """One slice."""
    return {each.index: 0 for each in found.graph.dynamic}


def halved(found: Analysed) -> Map:
    """Two slices of as many operators; one where nothing in between could travel."""
    dynamic = found.graph.dynamic
    middle = len(dynamic) // 2
    cut = {each.index: int(place >= middle) for place, each in enumerate(dynamic)}
    return kept_together(found.graph, found.shapes, cut)


def by_operator(found: Analysed) -> Map:
    """Each operator alone, but for those between which no tensor goes."""
    single = {each.index: place for place, each in enumerate(found.graph.dynamic)}
    return kept_together(found.graph, found.shapes, single)


def failure(case: Case, prepare: Callable[[ModelProto], Run]) -> str:
    """Why a way of running fails a case; empty when it passes."""
    from onnx.backend.test.runner import Runner

    try:
        run = prepare(case.model)
        for given, expected in case.data_sets:
            answer = run([_value(each) for each in given])
            wanted = [_value(each) for each in expected]
            Runner.assert_similar_outputs(wanted, answer, case.rtol, case.atol)
    except Exception as error:  # whatever it is, the case did not pass
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def is_cuttable(case: Case) -> bool:
    """Whether a cut makes another program of it: two operators depend on the inputs."""
    try:
        return len(_graph(case.model).dynamic) > 1
    except Exception:  # it is told where it is run
        return False


def versions() -> str:
    """Of what decides which cases pass."""
    return " ".join(f"{name}=={version(name)}" for name in ("onnx", "onnxruntime"))


def _graph(model: ModelProto) -> OperatorGraph:
    return analyse(model.SerializeToString(), {}, is_served=False).graph


def _stored(name: str, folder: Path, rtol: float, atol: float) -> Case:
    model = load(str(folder / "model.onnx"))
    sets = [
        (
            _files(each, "input", [value.type for value in model.graph.input]),
            _files(each, "output", [value.type for value in model.graph.output]),
        )
        for each in sorted(folder.glob("test_data_set*"))
    ]
    return Case(name, model, sets, rtol, atol)


def _files(folder: Path, side: str, kinds: Sequence[Any]) -> list[Any]:
    readers: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "sequence_type": (SequenceProto, numpy_helper.to_list),
        "optional_type": (OptionalProto, numpy_helper.to_optional),
    }
    found: list[Any] = []
    for number, kind in enumerate(kinds):
        path = folder / f"{side}_{number}.pb"
        if not path.is_file():
            break
        message, read = readers.get(kind.WhichOneof("value"), (TensorProto, numpy_helper.to_array))
        found.append(read(message.FromString(path.read_bytes())))
    return found


def _value(item: Any) -> Any:
    """As ONNX Runtime takes it: arrays, lists of arrays, None."""
    import numpy as np

    if isinstance(item, TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def main() -> int:
    """Print the ratchet file."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    print(f"# {versions()}")
    for case in cases():
        reason = failure(case, plainly)
        if reason:
            print(f"{case.name} {reason.partition(':')[0]}")
    return 0


WAYS: Final[dict[str, Callable[[ModelProto], Run]]] = {
    "whole": partial(sliced, map_of=whole),
    "cut in half": partial(sliced, map_of=halved),
    "operator level": partial(sliced, map_of=by_operator),
}

if __name__ == "__main__":
    sys.exit(main())
