"""Which operators a model may have, whoever registers it: a model is somebody else's program."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from din.domain.model import Slice
from din.domain.support import Need
from din.errors import BadModel

OPERATORS_ALLOWED = ("ai.onnx.*", "com.microsoft.*")


def check_operators(parts: Iterable[Slice], allowed: tuple[str, ...]) -> None:
    """Raises BadModel for an operator of which no pattern speaks. What a model's own functions are
    made of counts, not they themselves."""
    for part in parts:
        for need in part.needs.operators:
            name = _whole_name(need)
            if not any(fnmatchcase(name, pattern) for pattern in allowed):
                raise BadModel(
                    f"node {need.node!r} is the operator {name}, which this gateway does not take",
                    hint=f"its setting operators_allowed is {', '.join(allowed) or 'empty'}: add "
                    f"{name} there if you trust what computes it",
                )


def _whole_name(need: Need) -> str:
    return need.operator if "." in need.operator else f"ai.onnx.{need.operator}"
