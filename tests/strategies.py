"""Orders written flat in tests: the strategy's keys beside the model's own."""

from __future__ import annotations

from typing import Any

import msgspec

from din.domain.strategy import Strategy


def ordered(**order: Any) -> dict[str, Any]:
    """Keyword arguments of RegisterModel, with the strategy's keys moved into it."""
    keys = set(Strategy.__struct_fields__) & set(order)
    strategy = {key: order.pop(key) for key in keys}
    if strategy:
        order["slicing_strategy"] = msgspec.convert(strategy, Strategy)
    return order
