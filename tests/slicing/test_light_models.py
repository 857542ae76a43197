"""The nine topologies of the onnx package: shipped answers, and random weights at random cuts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from din.bench.backend_cases import by_operator, halved, whole
from din.bench.composed import Composed, engine
from din.bench.light_models import (
    ATOL,
    LIGHT_MODELS,
    RTOL,
    example,
    light_model,
    shipped_answer,
    with_random_weights,
)
from din.slicing.slicer import analyse

QUICK = ("shufflenet", "squeezenet", "inception_v1", "resnet50", "densenet121")
WAYS = (2, 3, 5)


@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_the_shipped_answer_comes_whole_halved_and_from_single_operators(name):
    model = light_model(name)
    found = analyse(model.SerializeToString(), {})
    given, expected = example(model), shipped_answer(name)
    for map_of in (whole, halved, by_operator):
        (answer,) = Composed(found, map_of(found)).run(given).values()
        np.testing.assert_allclose(answer, expected, rtol=RTOL, atol=ATOL)


def random_cut(found, ways, draw):
    """A map into so many chained slices."""
    dynamic = found.graph.dynamic
    starts = sorted(draw.sample(range(1, len(dynamic)), ways - 1))
    return {
        each.index: sum(place >= start for start in starts) for place, each in enumerate(dynamic)
    }


def check_random_cuts(name, ways, seeds):
    draw = random.Random(f"{name}{ways}{seeds}")
    model = with_random_weights(light_model(name), seeds[0])
    data = model.SerializeToString()
    found = analyse(data, {})
    ((tensor, value),) = example(model).items()
    given = {tensor: value + np.random.default_rng(1).random(value.shape, np.float32)}
    expected = {level: engine(data, level).run(None, given)[0] for level in ("off", "all")}
    assert float(np.std(expected["off"])) > 0.01, "an answer that says nothing proves nothing"
    for _ in seeds:
        slice_of = random_cut(found, ways, draw)
        (plain,) = Composed(found, slice_of, "off").run(given).values()
        assert plain.tobytes() == expected["off"].tobytes()
        (fast,) = Composed(found, slice_of, "all").run(given).values()
        scale = float(np.abs(expected["all"]).max())
        np.testing.assert_allclose(fast, expected["all"], rtol=1e-4, atol=1e-6 * max(1.0, scale))


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", QUICK)
def test_random_weights_cut_anywhere_answer_bit_by_bit_as_the_whole(name, ways):
    check_random_cuts(name, ways, (1,))


@pytest.mark.slow
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_many_random_cuts_of_every_topology_answer_bit_by_bit_as_the_whole(name, ways):
    """With the models of other people in `test_real_models.py`: over a hundred cuts."""
    check_random_cuts(name, ways, (2, 3, 4))
