"""`python -m din.carver`: one request as JSON in, one answer as JSON out, then the end.

A CarveRequest is answered by a CarveAnswer, an AnalyseRequest by a CutTable.

An error is {"code","message","hint"} on standard output with the error's exit code. Standard output
carries nothing else: what libraries print goes to standard error. `--insecure`: read the model also
where nothing confines who does.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import Final

import msgspec

from din.carver.carve import read_request
from din.carver.parting import carry_out
from din.domain.gateway_view import ErrorView
from din.errors import DinError, Internal, TooLarge
from din.system.privacy import end_with_parent, hide

REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024


def main() -> int:
    """Answer one request; the exit code."""
    gc.disable()  # it ends soon, and walking over a graph's many objects again and again costs most
    end_with_parent()
    hide()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads cannot give up its powers
    answer_to = os.dup(1)
    os.dup2(2, 1)
    try:
        said, exit_code = _answer()
        with os.fdopen(answer_to, "wb") as stream:
            stream.write(said)
    except BrokenPipeError:
        return 1  # whoever asked has gone
    return exit_code


def _answer() -> tuple[bytes, int]:
    try:
        return carry_out(read_request(_asked()), is_insecure="--insecure" in sys.argv[1:]), 0
    except DinError as error:
        return _said(error)
    except Exception as error:
        traceback.print_exc()
        text = f"the carver failed: {type(error).__name__}: {error}"
        return _said(Internal(text, hint="keep the model file and report this"))


def _asked() -> bytes:
    data = sys.stdin.buffer.read(REQUEST_BYTES_MAX + 1)
    if len(data) > REQUEST_BYTES_MAX:
        raise TooLarge(
            f"the request to the carver has over {REQUEST_BYTES_MAX} bytes",
            hint="name fewer partition points",
        )
    return data


def _said(error: DinError) -> tuple[bytes, int]:
    view = ErrorView(code=error.code, message=error.message, hint=error.hint)
    return msgspec.json.encode(view), error.exit_code


if __name__ == "__main__":
    sys.exit(main())
