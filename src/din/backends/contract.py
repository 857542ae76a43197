"""What an engine offers to the worker that holds it. numpy is the common tongue.

describe -> what this machine's library has; supports -> whether it would take a slice; load -> a
session, which runs until it is unloaded. A backend is a module of this room; `registry` knows them
all without importing one.

Arrays for words that numpy lacks (BF16, FP8) are raw bits in UINT16 or UINT8 arrays; BYTES tensors
are object arrays of `bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from din.domain.engine import EngineFacts
from din.domain.support import Lack, Needs
from din.domain.tensor import TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "FP8": np.dtype(np.uint8),
}
"""By the word for each; BF16 and FP8 travel as the bits they are."""


class Lasting(dict[str, Array]):
    """Arrays that are given again and again, the same ones under the same names: only what lies in
    them changes. Made for a few places of the arena, never for arrays of their own."""


class Session(Protocol):
    """One loaded model. `run` is called by one thread; `stop` may come from another."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What the model takes."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What it gives, in its own order."""
        ...

    def run(
        self,
        inputs: Mapping[str, Array],
        wanted: Sequence[str],
        targets: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Compute the wanted outputs. An output for which a target of the right shape is given may
        be written there; then the target itself is returned. Arrays returned are valid until the
        next run. What was made for a mapping that is `Lasting` may be kept for the next run.

        Raises BadTensor for input that the model refuses, ExecutionFailed for the rest.
        """
        ...

    def stop(self) -> None:
        """End the present run as soon as the engine lets us; it raises ExecutionFailed then."""
        ...

    def warm(self) -> bool:
        """One run on made-up input; False when no input could be made up that the model takes."""
        ...


class EngineSession(Session, Protocol):
    """A model in an engine."""

    @property
    def engine(self) -> str:
        """What runs it, for the node's log: engine, version, device, and what was given up."""
        ...

    def unload(self) -> None:
        """Give the model's memory back; nothing else may be called afterwards. A worker is unloaded
        by its end."""
        ...


class Backend(Protocol):
    """A module of this room, found through `registry`."""

    def describe(self) -> EngineFacts:
        """Ask the library for its version and devices. It may hang or kill the process: call it in
        one of its own (`asking`). Raises ImportError or what the library raises."""
        ...

    def supports(self, needs: Needs) -> tuple[Lack, ...]:
        """What is known not to run of a slice; nothing = the engine has the last word."""
        ...

    def load(
        self, model: bytes, options: Mapping[str, str], weights: Mapping[str, memoryview]
    ) -> EngineSession:
        """Tensors of the model whose data lie elsewhere name one of `weights` as their location;
        those need not stay when this has returned.

        Raises BadModel for a file that cannot be used, UsageError for a bad option, Unavailable for
        a device that this node lacks, MemoryError.
        """
        ...
