"""`classify`: a vector of class scores becomes the best few classes with their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from din.adapters.arrays import Array
from din.adapters.catalogue import classify_output
from din.adapters.options import ClassifyOptions
from din.domain.tensor import TensorSpec
from din.errors import BadTensor


class ClassifyAdapter:
    """One configured adapter."""

    def __init__(
        self,
        options: ClassifyOptions,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._options = options
        self._output = classify_output(options, tuple(spec.name for spec in inputs))

    def run(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Raises BadTensor unless the scores are one vector (or [1, classes])."""
        del wanted, targets
        tensor = inputs[self._output]
        if tensor.size == 0 or tensor.size != tensor.shape[-1]:
            raise BadTensor(
                f"scores {self._output!r} have shape {list(tensor.shape)}, "
                "one vector of classes is needed",
                hint="send one picture at a time",
            )
        scores = tensor.reshape(-1).astype(np.float32)
        if self._options.softmax:
            powers = np.exp(scores - scores.max())
            scores = powers / powers.sum()
        best = np.argsort(-scores, kind="stable")[: self._options.top_k]
        labels = np.empty(len(best), np.object_)
        for position, number in enumerate(best):
            labels[position] = self._label(int(number)).encode()
        return {
            "scores": scores[best],
            "labels": labels,
            "classes": best.astype(np.int64),
        }

    def stop(self) -> None:
        """The work is small."""

    def warm(self) -> bool:
        """Nothing is built on first use."""
        return True

    def _label(self, number: int) -> str:
        labels = self._options.labels
        return labels[number] if number < len(labels) else str(number)
