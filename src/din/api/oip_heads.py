"""JSON heads of Open Inference requests that came before: most clients send the same one always.

A head whose tensors all follow as raw bytes says everything about a request but the bytes. What was
read, checked and written for it once is kept here, for a bounded number of short heads.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from din.api.oip_request import OipRequest
from din.domain.model import ModelManifest
from din.domain.request import PrecisionClass
from din.domain.tensor import TensorMeta

HEADS_MAX: Final = 64
HEAD_BYTES_MAX: Final = 4096


class Asked(NamedTuple):
    """What a head asks for beside its inputs."""

    outputs: tuple[str, ...] = ()
    timeout_ms: int | None = None
    is_retry_of_random_allowed: bool = False
    precision: PrecisionClass | None = None


class KnownHead:
    """One head, read; and for what its requests were found good."""

    __slots__ = ("asked", "checked_for", "metas", "nbytes", "output_metas", "outputs", "request")

    def __init__(self, request: OipRequest, metas: tuple[TensorMeta, ...]) -> None:
        self.request = request
        self.metas = metas
        self.nbytes = sum(meta.nbytes for meta in metas)
        """Bytes that follow the head."""
        self.checked_for: ModelManifest | None = None
        """The manifest whose signature it fits."""
        self.asked = Asked()
        """Good together with `checked_for`."""
        self.output_metas: tuple[TensorMeta, ...] | None = None
        """Outputs of the last answer, if all were raw bytes."""
        self.outputs = msgspec.Raw()
        """How those are described."""


class Heads:
    """Known heads by their bytes; the one unused longest is forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, KnownHead] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, head: bytes) -> KnownHead | None:
        """What is known of a head."""
        known = self._known.get(head)
        if known is not None:
            self._known.move_to_end(head)
        return known

    def keep(self, head: bytes, known: KnownHead) -> None:
        """Remember a head, unless it is too long to be worth it."""
        if len(head) > HEAD_BYTES_MAX:
            return
        self._known[head] = known
        if len(self._known) > HEADS_MAX:
            self._known.popitem(last=False)
