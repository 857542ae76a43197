"""JSON bodies with msgspec, and its complaints as DIN's errors."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from din.errors import UsageError
from din.gateway.service import Buffer

Decoded = TypeVar("Decoded")

_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")


def decode_json(decoder: msgspec.json.Decoder[Decoded], raw: Buffer, what: str) -> Decoded:
    """One JSON document as the decoder's type. Of a key given twice the last one counts; NaN and
    Infinity are no JSON. Raises UsageError naming place and reason."""
    if not raw:
        raise UsageError(f"the body is empty; {what} is a JSON object", hint="send JSON")
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what}: {error}", hint=_field_hint(str(error), decoder)) from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{what} is not valid JSON: {error}", hint=_json_hint(raw)) from None
    except (RecursionError, UnicodeDecodeError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "not UTF-8"
        raise UsageError(f"{what} is not valid JSON: {reason}") from None


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
        return ""
    close = get_close_matches(found.group(1), fields, n=1)
    listing = f"fields are {', '.join(fields)}"
    return f"did you mean {close[0]!r}? {listing}" if close else listing
