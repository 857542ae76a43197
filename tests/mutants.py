"""Damaged input for parsers, by seed: what strangers, broken disks and other versions send.

Bytes are damaged where it hurts (lengths, ends, pieces twice); JSON-like values by what stands in
them. A parser may say no in its own words, and may do nothing else: `check` holds it to that, and
to memory and work in proportion to its input.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**40, 0.5, -0.0, 1e308, "", "x",
    "x" * 3000, "\x00", "\x1b[31m", "脸" * 50, "\ud800", "../../etc/passwd", "%s%n{0}", [], {},
    [[]], [None], [1] * 300, {"": ""}, {"x": {"x": {"x": 1}}}, ["x", 1, None, {}],
)  # fmt: skip
MEMORY_FACTOR, MEMORY_BYTES_FREE = 200, 2**23
"""An object takes some sixty bytes, and JSON makes one of two: `1,`."""
CALLS_FACTOR, CALLS_FREE = 60, 80_000


def bytes_mutants(seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Each seed damaged in one to five places."""
    draw = random.Random(seed)
    for _ in range(count):
        made = bytearray(draw.choice(seeds))
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            _damage(made, seeds, draw)
        yield bytes(made)


def _damage(made: bytearray, seeds: Sequence[bytes], draw: random.Random) -> None:
    if not made:
        made += draw.randbytes(draw.randrange(20))
        return
    at = draw.randrange(len(made))
    end = min(len(made), at + draw.choice((1, 2, 4, 8, 30)))
    kind = draw.randrange(7)
    if kind == 0:
        made[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        width, number = draw.choice((1, 2, 4, 8)), draw.choice((*NUMBERS, len(made)))
        raw = (number % 2 ** (8 * width)).to_bytes(width, draw.choice(("little", "big")))
        made[at : at + width] = raw
    elif kind == 2:
        del made[at:end]
    elif kind == 3:
        made[at:at] = made[at:end] * draw.choice((1, 1, 2, 50))
    elif kind == 4:
        del made[at:]
    elif kind == 5:
        other = draw.choice(seeds)
        start = draw.randrange(len(other) + 1)
        made[at:end] = other[start : start + draw.choice((1, 4, 20, 200))]
    else:
        made[at:end] = struct.pack("<d", draw.choice((float("nan"), float("inf"), -1e300)))


def value_mutants(seeds: Sequence[Any], count: int, seed: int) -> Iterator[Any]:
    """Each value with one to three of its parts exchanged, lost, doubled or buried deeper."""
    draw = random.Random(seed)
    for _ in range(count):
        value = draw.choice(seeds)
        for _ in range(draw.choice((1, 1, 2, 3))):
            value = _changed(value, draw, seeds)
        yield value


def _changed(value: Any, draw: random.Random, seeds: Sequence[Any]) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.85:
        made = dict(value)
        key = draw.choice(list(made))
        kind = draw.randrange(8)
        if kind == 0:
            del made[key]
        elif kind == 1:
            made[draw.choice((key + "x", "", "\u00e9", key.upper(), "x" * 500))] = made.pop(key)
        elif kind == 2:
            made[draw.choice(("", "schema", "zzz", "name"))] = draw.choice(ODD_VALUES)
        else:
            made[key] = _changed(made[key], draw, seeds)
        return made
    if isinstance(value, list) and value and draw.random() < 0.85:
        made = list(value)
        at = draw.randrange(len(made))
        kind = draw.randrange(6)
        if kind == 0:
            del made[at]
        elif kind == 1:
            made[at:at] = [made[at]] * draw.choice((1, 2, 300))
        else:
            made[at] = _changed(made[at], draw, seeds)
        return made
    return value_around(value, draw)


def value_around(value: Any, draw: random.Random) -> Any:
    """Something else in the place of a value, or the value a few or many levels deeper."""
    kind = draw.randrange(6)
    if kind == 0:
        return [value]
    if kind == 1:
        for _ in range(draw.choice((3, 70, 700))):
            value = [value] if draw.random() < 0.5 else {"x": value}
        return value
    return draw.choice(ODD_VALUES)


def as_json(value: Any) -> bytes:
    """Text in which half characters and any depth may stand."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return json.dumps(value).encode()
    finally:
        sys.setrecursionlimit(limit)


def is_packable(value: Any) -> bool:
    """Whether msgpack can hold it: no number is too large, and it is not too deep."""
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, RecursionError, UnicodeEncodeError):
        return False
    return True


def check(
    parse: Callable[[Any], object],
    mutants: Iterator[Any],
    refusals: type[Exception] | tuple[type[Exception], ...],
) -> tuple[int, int]:
    """How many were taken and refused. Every other error passes through, with the input noted."""
    taken = refused = 0
    for each in mutants:
        try:
            parse(each)
        except refusals:
            refused += 1
        except BaseException as error:
            error.add_note(f"the input was {each!r:.2000}")
            raise
        else:
            taken += 1
    return taken, refused


def check_cost(
    parse: Callable[[Any], object],
    inputs: Iterator[bytes],
    refusals: type[Exception] | tuple[type[Exception], ...],
    calls_factor: int = CALLS_FACTOR,
) -> None:
    """Memory and calls, counted, stay in proportion to the input's size: no clock is asked."""
    for each in inputs:
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        tracemalloc.start()
        sys.setprofile(count)
        try:
            parse(each)
        except refusals:
            pass
        finally:
            sys.setprofile(before)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        shown = f"{len(each)} bytes {each[:80]!r}"
        assert peak <= MEMORY_BYTES_FREE + MEMORY_FACTOR * len(each), f"{shown}: {peak} bytes"
        assert calls <= CALLS_FREE + calls_factor * len(each), f"{shown}: {calls} calls"
