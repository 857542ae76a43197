"""What the parser of the front leaves open: bodies beside an upgrade, and words for its errors."""

from __future__ import annotations

from collections.abc import Iterable

import httptools

from din.api.problem import Refused
from din.errors import DinError, UsageError


def check_no_body(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """For a request to upgrade, whose body the parser does not read: it would take the body for
    the next request. Raises UsageError."""
    for name, value in headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
            raise UsageError(
                "a request to upgrade has a body",
                hint="leave out the header Upgrade: this is HTTP/1.1 only",
            )


def refusal_of(error: httptools.HttpParserError) -> BaseException:
    """What to answer; an error raised in a callback says more than the parser's."""
    known = error.__context__
    if isinstance(known, (Refused, DinError)):
        return known
    if isinstance(known, httptools.HttpParserError):
        error = known
    return UsageError(f"malformed HTTP: {error}", hint="speak HTTP/1.1")
