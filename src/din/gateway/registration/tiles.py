"""Whether the batch of a model may be taken apart by rows, and into which shards. Pure.

The rule by shape: every output begins with the same free size as the inputs that are split. It does
not see an operator that mixes rows and keeps their number; `sharding` tries that out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from din.domain.model import CarveAnswer, Tiles
from din.domain.strategy import WAYS_MAX, Strategy
from din.domain.tensor import BYTES, TensorSpec, is_symbol
from din.errors import BadStrategy, TooLarge

PERCENT_WHOLE: Final = 100


def tiles_of(strategy: Strategy, carved: CarveAnswer) -> Tiles | None:
    """How batches are spread; None when the strategy does not ask for it. Raises BadStrategy for a
    model whose rows are not known to be apart."""
    if strategy.type != "input_tiles":
        return None
    if any(part.is_random for part in carved.slices):
        raise BadStrategy(
            "slicing_strategy.type: input_tiles needs the same answer for a row wherever it runs, "
            "and the model has random operators",
            hint="use another type",
        )
    split = tuple(each.name for each in carved.inputs if _batch_of(each) is not None)
    symbols = {_batch_of(each) for each in carved.inputs if each.name in split}
    if len(symbols) != 1:
        shown = ", ".join(f"{each.name} {each.shown_shape()}" for each in carved.inputs)
        raise BadStrategy(
            "slicing_strategy.type: input_tiles needs inputs that begin with one free size of one "
            f"name, here they are {shown}",
            hint='name it, for example "inputs": {"x": ["N", 3, 224, 224]}',
        )
    (symbol,) = symbols
    for each in (*carved.inputs, *carved.outputs):
        _check(each, str(symbol), is_split=each.name in split or each in carved.outputs)
    return Tiles(rows_max=strategy.rows_max, ways=strategy.ways, split=split)


def shards_of(
    rows: int, tiles: Tiles, capacity_percent: int = PERCENT_WHOLE
) -> list[tuple[int, int]]:
    """Ranges of rows, as equal as they can be; one for all when nothing is to be split. Of
    `rows_max` only the share is used that heat leaves. Raises TooLarge for more than WAYS_MAX."""
    count = min(rows, tiles.ways or 1)
    if tiles.rows_max is not None:
        count = -(-rows // tiles.rows_max)
    if count > WAYS_MAX:
        raise TooLarge(
            f"a batch of {rows} rows makes {count} shards of {tiles.rows_max} rows, more than "
            f"{WAYS_MAX}",
            hint="send fewer rows, or register the model with a larger rows_max",
        )
    if tiles.rows_max is not None and capacity_percent < PERCENT_WHOLE:
        # Heat refuses nothing that a cool node would take.
        cooler = max(1, tiles.rows_max * capacity_percent // PERCENT_WHOLE)
        count = min(-(-rows // cooler), WAYS_MAX)
    count = max(count, 1)
    bounds = [rows * each // count for each in range(count + 1)]
    return list(pairwise(bounds))


def _batch_of(spec: TensorSpec) -> str | None:
    first = spec.shape[0] if spec.shape else None
    return first if isinstance(first, str) and is_symbol(first) else None


def _check(spec: TensorSpec, symbol: str, *, is_split: bool) -> None:
    if is_split and (spec.dtype == BYTES or _batch_of(spec) != symbol):
        raise BadStrategy(
            f"slicing_strategy.type: input_tiles cannot take {spec.name!r} apart: it is "
            f"{spec.dtype} {spec.shown_shape()} and does not begin with {symbol}",
            hint="each output needs the batch as its first size: export with a named dynamic axis",
        )
    if symbol in (spec.shape or ())[1 if is_split else 0 :]:
        raise BadStrategy(
            f"slicing_strategy.type: input_tiles cannot take {spec.name!r} apart: {symbol} is not "
            f"only its first size, {spec.shown_shape()}",
            hint="rows that look at all other rows cannot run apart",
        )
