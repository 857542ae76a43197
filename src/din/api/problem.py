"""Errors as each API wants them: one DinError in, a status and JSON out."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from din.errors import DeadlineExceeded, DinError, Internal, Limited, Unauthenticated

Flavour = Literal["infer", "oip", "api"]
"""infer: the seeds' fields. oip: `error` is one string. api: `error` is an object."""

RETRY_AFTER_S: Final = 1
UNAVAILABLE: Final = 503
_MORE_TIME: Final = (
    "give it more time: timeout_ms in the request, --timeout-ms of the commands; "
    "`din trace show` says where it went"
)


class Refused(Exception):
    """An HTTP answer without a DinError of its own status (405, 408, 431)."""

    def __init__(self, status: int, error: DinError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


def as_din_error(error: BaseException) -> DinError:
    """The error itself, or Internal for what should never have come this far."""
    if isinstance(error, DinError):
        return error
    return Internal(
        f"the gateway failed inside: {type(error).__name__}",
        hint="the gateway's log holds the details under this request id",
    )


def problem_body(flavour: Flavour, error: DinError, request_id: str) -> bytes:
    """JSON of one error in the shape of its API."""
    hint = error.hint
    if not hint and flavour != "api" and isinstance(error, DeadlineExceeded):
        hint = _MORE_TIME  # workers and agents tell where a request was, not what its caller can do
    facts = {"code": error.code, "message": error.message, "hint": hint}
    if flavour == "oip":
        text = f"{error.message} ({hint})" if hint else error.message
        return msgspec.json.encode({"error": text, "din": {**facts, "request_id": request_id}})
    if flavour == "infer":
        failed = {"request_id": request_id, "status": "failed", "error": facts}
        return msgspec.json.encode(failed)
    return msgspec.json.encode({"error": facts})


def headers_of(error: BaseException) -> dict[str, str]:
    """What an error says in header fields beside its body."""
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": 'Bearer realm="din"'}
    if isinstance(error, Limited):
        return {"retry-after": str(error.retry_after_s)}
    if isinstance(error, DinError) and error.http_status == UNAVAILABLE:
        return {"retry-after": str(RETRY_AFTER_S)}
    return {}
