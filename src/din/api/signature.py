"""Holds a request against the model's signature, once, before the gateway is asked to run it."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from math import prod
from urllib.parse import unquote_to_bytes

from din.api.values import element_starts
from din.domain.model import ModelManifest
from din.domain.request import PrecisionClass
from din.domain.tensor import (
    BYTES,
    DTYPE_BYTES,
    RANK_MAX,
    TENSORS_MAX,
    TensorMeta,
    TensorSpec,
    check_tensor,
)
from din.errors import BadTensor, UsageError
from din.gateway.service import Buffer

PRECISIONS: tuple[PrecisionClass, ...] = ("exact", "fp16", "uint8")
NAMES_SHOWN_MAX = 16
"""Of a model's tensors in one message."""
NAME_CHARACTERS_COMPARED = 200
"""Of a name that nothing has: looking for the nearest takes a time of both lengths multiplied."""
DIM_MAX = 2**40
"""Larger sizes in a shape are refused before any product is formed."""
NFC_SHRINK_MAX = 4
"""So many characters become one, at most. What is too long even then is not normalised, which takes
a time that grows with the square of the length."""


def check_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that a request names. Raises BadTensor for negative, huge or too many dims."""
    if len(shape) > RANK_MAX:
        raise BadTensor(
            f"input {name!r} has {len(shape)} dimensions; the limit is {RANK_MAX}",
            hint="reshape it: no model takes so many",
        )
    for size in shape:
        if size < 0 or size > DIM_MAX:
            raise BadTensor(
                f"input {name!r} has shape {list(shape)}; sizes are 0..{DIM_MAX}",
                hint="requests name real sizes: -1 stands only in a model's metadata",
            )
    return tuple(shape)


def check_inputs(
    manifest: ModelManifest,
    metas: tuple[TensorMeta, ...],
    chunks: Sequence[Sequence[Buffer]],
    *,
    is_adapted: bool,
) -> None:
    """Names, datatypes, shapes and byte counts. Raises BadTensor naming expected and actual."""
    specs = manifest.adapted_inputs if is_adapted else manifest.inputs
    by_name = {spec.name: spec for spec in specs}
    seen: set[str] = set()
    symbols: dict[str, int] = {}
    for meta, pieces in zip(metas, chunks, strict=True):
        spec = by_name.get(meta.name)
        if spec is None or meta.name in seen:
            raise _unexpected(meta.name, specs, is_twice=spec is not None)
        seen.add(meta.name)
        check_tensor(spec, meta, symbols)
        if meta.dtype == BYTES:
            _check_elements(meta, pieces)
    if len(seen) != len(specs):
        missing = [spec.name for spec in specs if spec.name not in seen]
        raise BadTensor(
            f"inputs missing: {_some(map(repr, missing))}",
            hint=f"model {manifest.model_id!r} takes {_listing(specs)}",
        )


def _check_elements(meta: TensorMeta, pieces: Sequence[Buffer]) -> None:
    first = bytes(pieces[0][:4]) if pieces else b""
    # One element, as files are sent: its length tells all, and nothing is copied.
    is_single = meta.shape == (1,) and len(first) == 4
    if is_single and int.from_bytes(first, "little") == meta.nbytes - 4:
        return
    count = len(element_starts(meta.name, b"".join(pieces))) - 1
    if count != prod(meta.shape):
        raise BadTensor(
            f"input {meta.name!r} of shape {list(meta.shape)} BYTES needs {prod(meta.shape)} "
            f"elements, got {count}",
            hint="each element is a 4-byte little-endian length and then its bytes",
        )


def _listing(specs: Sequence[TensorSpec]) -> str:
    return _some(f"{spec.name!r} {spec.dtype} {spec.shown_shape()}" for spec in specs)


def _some(texts: Iterable[str]) -> str:
    """The first ones, and how many more there are: a model may have a thousand tensors."""
    every = list(texts)
    more = len(every) - NAMES_SHOWN_MAX
    shown = ", ".join(every[:NAMES_SHOWN_MAX])
    return f"{shown} and {more} more" if more > 0 else shown or "none"


def _unexpected(name: str, specs: Sequence[TensorSpec], *, is_twice: bool) -> BadTensor:
    if is_twice:
        return BadTensor(f"input {name!r} is given twice", hint="send each input once")
    return BadTensor(f"unknown input {name!r}", hint=f"the model takes {_listing(specs)}")


def check_outputs(manifest: ModelManifest, wanted: Sequence[str], *, is_adapted: bool) -> None:
    """Names of wanted outputs. Raises BadTensor naming the valid ones."""
    if not wanted:
        return
    if len(wanted) > TENSORS_MAX:
        raise BadTensor(
            f"{len(wanted)} outputs are wanted; the limit is {TENSORS_MAX}",
            hint="want fewer, or name none to get all",
        )
    specs = manifest.adapted_outputs if is_adapted else manifest.outputs
    valid = {spec.name: None for spec in specs}
    for name in wanted:
        if name not in valid:
            close = get_close_matches(name[:NAME_CHARACTERS_COMPARED], valid, n=1)
            hint = f"valid outputs are {_some(map(repr, valid))}"
            if close:
                hint = f"did you mean {close[0]!r}? {hint}"
            raise BadTensor(f"unknown output {name!r}", hint=hint)
    if len(set(wanted)) != len(wanted):
        raise BadTensor(
            f"an output is wanted twice: {_some(_twice(wanted))}", hint="name each output once"
        )


def _twice(names: Sequence[str]) -> list[str]:
    return [repr(name) for name, count in Counter(names).items() if count > 1]


def check_dtype(name: str, dtype: str) -> None:
    """A datatype word. Raises BadTensor listing the known ones."""
    if dtype != BYTES and dtype not in DTYPE_BYTES:
        raise BadTensor(
            f"input {name!r} has unknown datatype {dtype!r}",
            hint=f"datatypes are {', '.join([*DTYPE_BYTES, BYTES])}",
        )


@lru_cache(maxsize=64)
def model_id_of(raw: str) -> str:
    """A model id from a path or query: percent-decoded UTF-8 in NFC. Raises UsageError."""
    try:
        return plain_text(unquote_to_bytes(raw).decode(), "model id", 128)
    except UnicodeDecodeError:
        raise UsageError(
            f"model id {raw!r:.80} is not UTF-8 after percent-decoding",
            hint="encode the id as UTF-8 and then percent-encode it",
        ) from None


def plain_text(text: str, what: str, length_max: int) -> str:
    """NFC text of 1..length_max characters without control characters. Raises UsageError."""
    is_plain = text.isascii() and text.isprintable()  # as nearly always: nothing to normalise
    if not is_plain and len(text) <= length_max * NFC_SHRINK_MAX:
        text = unicodedata.normalize("NFC", text)
    if not text:
        raise UsageError(f"the {what} is empty", hint=f"give a {what}")
    if len(text) > length_max:
        raise UsageError(
            f"the {what} has {len(text)} characters; the limit is {length_max}", hint="shorten it"
        )
    if not is_plain and any(unicodedata.category(each) in ("Cc", "Cs") for each in text):
        raise UsageError(
            f"the {what} {text!r:.80} holds a control character",
            hint="use printable text, percent-encoded in a URL",
        )
    return text


def precision_of(value: object) -> PrecisionClass | None:
    """The least precision that a request allows. Raises UsageError."""
    if value is None:
        return None
    for each in PRECISIONS:
        if value == each:
            return each
    raise UsageError(
        f"precision is {value!r:.40}",
        hint=f"it is the least that may cross between slices: {', '.join(PRECISIONS)}",
    )


def timeout_of(value: object) -> int | None:
    """A time-out in milliseconds, 1 ms to one hour. Raises UsageError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 3_600_000:
        raise UsageError(
            f"timeout_ms is {value!r:.40}", hint="timeout_ms is a whole number from 1 to 3600000"
        )
    return value
