"""What the carver gives up before it sees a byte of a model. The one place for the sandbox to grow:
a filter of system calls goes here, between the limits and the import of `onnx`."""

from __future__ import annotations

import resource
import signal
from types import FrameType
from typing import Final

from din.errors import TooLarge
from din.slicing.skeleton import SKELETON_BYTES_MAX
from din.system.privacy import prctl

ADDRESS_BYTES_BASE: Final = 2 * 1024**3
"""Interpreter, libraries and their threads' stacks; address space, of which little is resident."""

COPIES_MAX: Final = 6
"""Of what is parsed, the model without its weights: message, copies, slices, their bytes."""

CPU_SECONDS_MAX: Final = 240
CPU_SECONDS_GRACE: Final = 10

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Be killed when whoever started this process dies: nobody would read the answer, and a model
    may keep it busy for minutes. Raises OSError."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(model_bytes: int, mapped_bytes: int) -> None:
    """Limit memory and processor time for a model file of this size, which is mapped with the files
    beside it; no core files, ever."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parsed_bytes = min(model_bytes, SKELETON_BYTES_MAX)
    limit = ADDRESS_BYTES_BASE + mapped_bytes + COPIES_MAX * parsed_bytes
    _lower(resource.RLIMIT_AS, limit, 0)
    signal.signal(signal.SIGXCPU, _out_of_time)
    _lower(resource.RLIMIT_CPU, CPU_SECONDS_MAX, CPU_SECONDS_GRACE)


def _lower(kind: int, soft: int, grace: int) -> None:
    """Set a limit, never above one that is set already."""
    hard_before = resource.getrlimit(kind)[1]
    if hard_before != resource.RLIM_INFINITY:
        soft = min(soft, hard_before)
        grace = min(grace, hard_before - soft)
    resource.setrlimit(kind, (soft, soft + grace))


def _out_of_time(_number: int, _frame: FrameType | None) -> None:
    raise TooLarge(
        f"carving took more than {CPU_SECONDS_MAX} s of processor time and was stopped",
        hint="simplify the graph or split it before registering it",
    )
