"""JSON bodies with msgspec, and its complaints as DIN's errors."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final, TypeVar

import msgspec

from din.domain.nulls import without_nulls
from din.errors import TooLarge, UsageError
from din.gateway.service import Buffer

Decoded = TypeVar("Decoded")

JSON_VALUES_MAX: Final = 4 * 1024 * 1024
"""Counted by commas: each value becomes an object. A photo of 1000 x 1000 fits, as numbers."""
JSON_LISTS_MAX: Final = 256 * 1024
"""Lists and objects: each costs ten times a number, and the event loop stands still meanwhile."""
WORD_CHARACTERS_MAX: Final = 200
"""Of what is quoted, or compared with what we know."""

_NULL: Final = "got `null`"
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")


def decode_json(decoder: msgspec.json.Decoder[Decoded], raw: Buffer, what: str) -> Decoded:
    """One JSON document as the decoder's type. Of a key given twice the last one counts, null for
    a key that may be left out leaves it out; NaN and Infinity are no JSON. Raises UsageError naming
    place and reason, TooLarge."""
    if not raw:
        raise UsageError(f"the body is empty; {what} is a JSON object", hint="send JSON")
    _check_size(raw, what)
    try:
        return _decoded(decoder, raw)
    except msgspec.ValidationError as error:
        hint = _field_hint(str(error), decoder)
        raise UsageError(f"{what}: {_short(str(error))}", hint=hint) from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{what} is not valid JSON: {error}", hint=_json_hint(raw)) from None
    except (RecursionError, UnicodeDecodeError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "not UTF-8"
        raise UsageError(
            f"{what} is not valid JSON: {reason}",
            hint="send one JSON object in UTF-8, a few levels deep",
        ) from None


def _decoded(decoder: msgspec.json.Decoder[Decoded], raw: Buffer) -> Decoded:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        if _NULL not in str(error):
            raise
    return msgspec.convert(without_nulls(msgspec.json.decode(raw), decoder.type), decoder.type)


def _check_size(raw: Buffer, what: str) -> None:
    """How much it would become, at the price of looking through the bytes."""
    if len(raw) < JSON_LISTS_MAX:
        return
    body = bytes(raw) if isinstance(raw, memoryview) else raw
    for found, limit, words in (
        (body.count(b","), JSON_VALUES_MAX, "commas"),
        (body.count(b"[") + body.count(b"{"), JSON_LISTS_MAX, "brackets"),
    ):
        if found > limit:
            raise TooLarge(
                f"{what} has {found} {words} in its JSON; the limit is {limit}",
                hint="send tensors as raw bytes with the binary tensor extension",
            )


def _short(text: str) -> str:
    """A complaint without the middle, where it quotes what came."""
    if len(text) <= 2 * WORD_CHARACTERS_MAX:
        return text
    return f"{text[:WORD_CHARACTERS_MAX]} … {text[-WORD_CHARACTERS_MAX:]}"


def _json_hint(raw: Buffer) -> str:
    if re.search(rb"[\[,:]\s*(NaN|-?Infinity)\b", raw[:65536]):
        return "JSON has no NaN or Infinity; send such values as raw bytes"
    if raw[:1] not in (b"{", b" ", b"\n", b"\r", b"\t"):
        return "the body must be one JSON object; raw images need their own Content-Type"
    return "check quotes, commas and that the body is complete"


def _field_hint(message: str, decoder: msgspec.json.Decoder[Decoded]) -> str:
    found = _UNKNOWN_FIELD.search(message)
    fields: tuple[str, ...] = getattr(decoder.type, "__struct_fields__", ())
    if not found or not fields:
        return "correct it at that place: $ is the whole body, [0] the first of a list"
    close = get_close_matches(found.group(1)[:WORD_CHARACTERS_MAX], fields, n=1)
    listing = f"fields are {', '.join(fields)}"
    return f"did you mean {close[0]!r}? {listing}" if close else listing
