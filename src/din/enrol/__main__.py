"""`python -m din.enrol join | renew`: one order in, one answer out, then it ends.

The only program of a node that imports `cryptography` for certificates.
"""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from din.domain.enrolment import Membership
from din.domain.malformed import MALFORMED
from din.enrol.joining import join, renew
from din.errors import DinError, Internal, UsageError
from din.system.clock import wall_clock_ms
from din.system.privacy import hide
from din.transport.membership import EnrolOrder, encode_enrol_answer

ORDER_BYTES_MAX: Final = 16 * 1024
STEPS: Final = {"join": join, "renew": renew}


def main() -> int:
    """Read, do, answer. The exit code of the error tree."""
    hide()
    try:
        outcome = _run(sys.argv[1:])
    except DinError as error:
        return _end(encode_enrol_answer(error), error.exit_code)
    except Exception as error:
        fault = Internal(f"joining failed inside: {type(error).__name__}")
        return _end(encode_enrol_answer(fault), fault.exit_code)
    return _end(encode_enrol_answer(outcome), 0)


def _run(words: list[str]) -> Membership:
    if len(words) != 1 or words[0] not in STEPS:
        raise UsageError("say join or renew", hint="people use `din node join`")
    try:
        order = msgspec.json.decode(sys.stdin.buffer.read(ORDER_BYTES_MAX), type=EnrolOrder)
    except MALFORMED:
        # What came may hold a token, so it is not repeated.
        raise UsageError("the order on standard input is not understood") from None
    return STEPS[words[0]](order, wall_clock_ms)


def _end(answer: bytes, exit_code: int) -> int:
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
