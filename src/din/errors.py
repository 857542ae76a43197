"""Every error that DIN shows to a person, drawn as one tree.

    DinError                      HTTP  exit  code     whose fault
    ├── UsageError                 400   2    DIN-100  the caller's words (flag, field, file)
    │   ├── BadTensor              400   2    DIN-110  a tensor that is not what the signature asks
    │   ├── BadModel               400   2    DIN-120  a file that is no usable ONNX model
    │   ├── BadStrategy            400   2    DIN-130  a strategy that does not fit the graph
    │   └── TooLarge               413   2    DIN-140  a body, tensor or registration over its limit
    ├── CannotPlace                503   3    DIN-200  no node satisfies the constraints
    ├── Unavailable                503   4    DIN-300  the thing asked for cannot answer now
    │   ├── Unreachable            503   4    DIN-310  no answer from the other end
    │   ├── Busy                   503   4    DIN-320  every queue that could take it is full
    │   │   └── Limited            429   4    DIN-321  who asks does it too often
    │   ├── ExecutionFailed        502   4    DIN-330  a node or slice failed, retries too
    │   │   ├── WorkerLost         502   4    DIN-331  the process that computed it ended
    │   │   └── SpoiledTensor      502   4    DIN-332  what a slice sent another cannot be read
    │   └── Quarantined            503   4    DIN-340  a slice that ended its workers is kept out
    ├── DeadlineExceeded           504   5    DIN-400  the time given was not enough
    ├── NotFound                   404   6    DIN-500  no such model, node, trace, artifact
    ├── Conflict                   409   7    DIN-600  a name, port, directory or version is taken
    ├── Denied                     403   8    DIN-700  not allowed
    │   └── Unauthenticated        401   8    DIN-710  who asks did not say who they are
    └── Internal                   500   1    DIN-900  our fault

`message` says what happened with the value seen; `hint` says what to do next. Both are whole
sentences without a final stop in `message`. Errors are translated into HTTP, gRPC or an exit code
at the edge only. Cores raise these or return typed failures; nothing else crosses a room.
"""

from __future__ import annotations

from typing import ClassVar


class DinError(Exception):
    """Base of the tree. Never raised itself."""

    code: ClassVar[str] = "DIN-900"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def story(self) -> str:
        """Both lines that a person sees."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(DinError):
    """The caller asked for something that cannot be meant."""

    code = "DIN-100"
    http_status = 400
    exit_code = 2


class BadTensor(UsageError):
    """A tensor whose name, dtype, shape or byte count is not what the signature asks."""

    code = "DIN-110"


class BadModel(UsageError):
    """A file that is not a usable ONNX model."""

    code = "DIN-120"


class BadStrategy(UsageError):
    """A slicing strategy that does not fit the graph."""

    code = "DIN-130"


class TooLarge(UsageError):
    """Something over a named limit."""

    code = "DIN-140"
    http_status = 413


class CannotPlace(DinError):
    """No node satisfies the constraints; `rejections` says why, node by node."""

    code = "DIN-200"
    http_status = 503
    exit_code = 3


class Unavailable(DinError):
    """The thing asked for exists but cannot answer now."""

    code = "DIN-300"
    http_status = 503
    exit_code = 4


class Unreachable(Unavailable):
    """The other end did not answer."""

    code = "DIN-310"


class Busy(Unavailable):
    """Every queue that could take the request is full. Nobody is to blame."""

    code = "DIN-320"


class Limited(Busy):
    """Whoever asks has asked too often, or was wrong too often."""

    code = "DIN-321"
    http_status = 429

    def __init__(self, message: str, *, hint: str = "", retry_after_s: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class ExecutionFailed(Unavailable):
    """A node or a slice failed, and so did the retries that the deadline allowed."""

    code = "DIN-330"
    http_status = 502


class WorkerLost(ExecutionFailed):
    """The worker that computed a request ended before it answered."""

    code = "DIN-331"


class SpoiledTensor(ExecutionFailed):
    """What one slice sent another cannot be read: its node, or the way from there, is to blame."""

    code = "DIN-332"

    def __init__(self, message: str, *, hint: str = "", tensor: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tensor = tensor
        """Its name, by which its producer is found."""


class Quarantined(Unavailable):
    """A slice ended its workers on a node, which does not load it for a while."""

    code = "DIN-340"


class DeadlineExceeded(DinError):
    """The time given was not enough."""

    code = "DIN-400"
    http_status = 504
    exit_code = 5


class NotFound(DinError):
    """No such model, node, trace or artifact."""

    code = "DIN-500"
    http_status = 404
    exit_code = 6


class Conflict(DinError):
    """A name, port, directory or version is taken."""

    code = "DIN-600"
    http_status = 409
    exit_code = 7


class Denied(DinError):
    """Not allowed."""

    code = "DIN-700"
    http_status = 403
    exit_code = 8


class Unauthenticated(Denied):
    """No API key or certificate was shown, or one that does not count."""

    code = "DIN-710"
    http_status = 401


class Internal(DinError):
    """Our fault: a broken promise between two rooms."""

    code = "DIN-900"


def every_error() -> tuple[type[DinError], ...]:
    """All concrete classes of the tree, for `din errors` and for decoding an error by its code."""
    found: list[type[DinError]] = []
    pending: list[type[DinError]] = [DinError]
    while pending:
        for child in pending.pop().__subclasses__():
            found.append(child)
            pending.append(child)
    return tuple(sorted(found, key=lambda each: each.code))


def error_of_code(code: str, message: str, hint: str = "") -> DinError:
    """Rebuild an error that crossed a wire; an unknown code becomes `Internal`."""
    for each in every_error():
        if each.code == code:
            return each(message, hint=hint)
    return Internal(f"{message} (unknown error code {code})", hint=hint)
