"""Where two nodes may answer differently in more than the last digits.

Kernels for integers saturate and round by what the processor has: an 8-bit product sums up to other
values with AVX2 than with VNNI, and a class changes. So all replicas of a slice that computes in
integers have the same instruction sets and the same engine: whichever of them is asked, the answer
is the same. What computes in floats differs in the last digits, which every comparison allows for.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from din.domain.node import NodeProfile
from din.domain.support import Engine, Needs, engines_of

_INTEGER: Final = ("QLinear", "QGemm", "QAttention", "QEmbed", "DynamicQuantize", "ConvInteger",
                   "MatMulInteger")  # fmt: skip
"""Beginnings of the names of operators, whatever their domain."""
_EXPLICIT: Final = frozenset(("QuantizeLinear", "DequantizeLinear"))
"""Engines fuse what stands between them into integer kernels."""


class Numerics(NamedTuple):
    """What decides of integer arithmetic; equal = the same answers."""

    device_type: str
    cpu_isa: tuple[str, ...]
    engine: Engine

    def __str__(self) -> str:
        return f"{self.device_type} ({' '.join(self.cpu_isa) or 'no special'}), {self.engine}"


def computes_in_integers(needs: Needs) -> bool:
    """Whether a slice holds integer arithmetic of the model's own: the coders that DIN puts at cuts
    only round. False where nothing is known of its operators."""
    for need in needs.operators:
        kind = need.operator.rpartition(".")[2]
        is_coder = need.node.endswith(f".{kind}")
        if kind.startswith(_INTEGER) or (kind in _EXPLICIT and not is_coder):
            return True
    return False


def numerics_of(profile: NodeProfile, backend: str) -> Numerics:
    """Of a backend on a node."""
    engines = engines_of(profile.backends, profile.versions, profile.device_type)
    engine = next((each for each in engines if each.backend == backend), Engine(backend))
    return Numerics(profile.device_type, tuple(sorted(profile.cpu_isa)), engine)
