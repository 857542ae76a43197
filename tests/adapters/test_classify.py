import numpy as np
import pytest

from din.adapters.catalogue import after_specs
from din.adapters.registry import load_adapter
from din.domain.model import AdapterSpec
from din.domain.tensor import TensorSpec
from din.errors import BadTensor


def classify(scores: object, **options: object) -> dict[str, list[object]]:
    spec = AdapterSpec("classify", options)
    made = load_adapter(spec, *after_specs(spec, (TensorSpec("p", "FP32", None),)))
    assert made.warm()
    found = made.run({"p": np.array(scores, np.float32)}, (), {})
    return {name: array.tolist() for name, array in found.items()}


def test_the_best_classes_come_first_with_their_names():
    found = classify([[1, 3, 2]], labels=["cat", "hund 🐕"], top_k=2)
    assert found["labels"] == ["hund 🐕".encode(), b"2"]
    assert found["classes"] == [1, 2]
    assert found["scores"] == pytest.approx([0.66524, 0.24473], abs=1e-4)


def test_probabilities_stay_as_they_are_and_fewer_classes_than_asked_are_fine():
    found = classify([0.25, 0.75], softmax=False, top_k=9)
    assert found["scores"] == [0.75, 0.25]


def test_huge_scores_do_not_overflow():
    assert classify([1e30, 0])["scores"] == [1.0, 0.0]


@pytest.mark.parametrize("scores", [[[1, 2], [3, 4]], [], [[]]])
def test_scores_that_are_not_one_vector_are_a_bad_tensor(scores: object):
    with pytest.raises(BadTensor, match="one vector"):
        classify(scores)
