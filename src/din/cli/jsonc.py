"""JSON with `//` and `/* */` comments and trailing commas, as the seeds write their strategies.

Comments and commas become blanks, so that an error of the JSON parser still names the right line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from din.errors import UsageError

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
_TOKEN: Final = re.compile(
    r'"(?:\\.|[^"\\\n])*"'  # a string, in which nothing is a comment
    r"|//[^\n]*"
    r"|/\*.*?(?:\*/|\Z)",
    re.DOTALL,
)
_COMMA: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|,(?=\s*[}\]])', re.DOTALL)


def parse_jsonc(text: str, where: str) -> object:
    """The value that a text holds. Raises UsageError with line and column."""
    if len(text) > FILE_BYTES_MAX:
        raise UsageError(
            f"{where} has {len(text)} characters; the limit is {FILE_BYTES_MAX}",
            hint="a configuration is a few lines; is it the model itself?",
        )
    plain = _COMMA.sub(_blank(","), _TOKEN.sub(_blank("/"), text.removeprefix("\ufeff")))
    try:
        return json.loads(plain, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="comments and trailing commas are allowed; names and text need double quotes",
        ) from None
    except RecursionError:
        raise UsageError(
            f"{where} is nested too deeply", hint="see `din model register --help` for its form"
        ) from None
    except _Refused as error:
        raise UsageError(
            f"{where}: {error}", hint="see `din model register --help` for its form"
        ) from None


class _Refused(Exception):
    pass


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise _Refused(f"key {name!r} is given twice")
        found[name] = value
    return found


def _no_constant(text: str) -> object:
    raise _Refused(f"{text} is no JSON number")


def _blank(start: str) -> Callable[[re.Match[str]], str]:
    def replacement(found: re.Match[str]) -> str:
        text = found.group()
        return re.sub(r"[^\n]", " ", text) if text.startswith(start) else text

    return replacement
