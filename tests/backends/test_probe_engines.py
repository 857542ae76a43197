"""A probe runs each slice on the engine that is to run it, and holds that to the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from probe_play import FIRST_PART, LAST_PART, WHOLE_PART, ask, first, last, order, probe, whole

from din.backends import openvino_backend, probe_models
from din.domain.probe import ENGINES, ProbePart, VerifyReport

X = np.arange(8, dtype=np.float32).reshape(2, 4)
ON_OPENVINO = replace(LAST_PART, backend="openvino")


def verified(*parts: ProbePart, **options: str) -> VerifyReport:
    files = {-1: whole, 0: first, 1: last}
    session = probe(*(files[part.index]() for part in parts), **options)
    found = ask(session, order("verify", *parts), x=X)
    assert isinstance(found, VerifyReport)
    return found


@pytest.mark.parametrize("optimisation", ["off", "all"])
def test_slices_on_two_engines_agree_with_the_whole(optimisation: str) -> None:
    found = verified(
        WHOLE_PART, FIRST_PART, ON_OPENVINO, optimisation=optimisation, engines="openvino"
    )
    level = found.levels[-1]
    assert level.optimisation == ENGINES
    assert {each.name for each in level.tensors} == {"t", "y"}
    assert found.is_right


def test_a_model_in_one_slice_is_held_to_onnx_runtime() -> None:
    part = replace(WHOLE_PART, index=0, backend="openvino")
    found = ask(probe(whole(), whole()), order("verify", WHOLE_PART, part), x=X)
    assert isinstance(found, VerifyReport)
    assert found.levels[-1].optimisation == ENGINES
    assert found.is_right


def test_without_another_engine_nothing_more_is_run() -> None:
    found = verified(WHOLE_PART, FIRST_PART, LAST_PART)
    assert [level.optimisation for level in found.levels] == ["off", "all"]


class Stubborn:
    """Stands in for an engine that computes otherwise, or refuses."""

    def __init__(self, change: float = 0.0) -> None:
        self.change = change

    def load(self, model: bytes, options: Mapping[str, str], weights: Any) -> Any:
        assert "engines" not in options
        if not self.change:
            return openvino_backend.load(b"", {}, {})
        self.session = openvino_backend.load(model, options, weights)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, *given: Any) -> dict[str, Any]:
        return {name: each + self.change for name, each in self.session.run(*given).items()}


def test_an_engine_that_computes_otherwise_is_told_by_how_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_models, "import_backend", lambda _: Stubborn(0.5))
    found = verified(WHOLE_PART, FIRST_PART, ON_OPENVINO, engines="openvino")
    assert not found.is_right
    (bad,) = [each for each in found.levels[-1].tensors if not each.is_within]
    assert (bad.name, bad.after_slice, bad.is_proof) == ("y", 1, True)
    assert bad.max_absolute == 0.5
    assert all(level.is_right for level in found.levels[:-1]), "the cut itself is right"


def test_an_engine_that_refuses_a_slice_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_models, "import_backend", lambda _: Stubborn())
    found = verified(WHOLE_PART, FIRST_PART, ON_OPENVINO)
    (bad,) = [each for each in found.levels[-1].tensors if not each.is_within]
    assert "slice 1: OpenVINO" in bad.trouble
