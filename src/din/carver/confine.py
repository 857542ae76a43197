"""What the part of the carver that reads a model gives up before it sees a byte of it.

Everything that a worker gives up (`din.sandbox`), threads as well; and memory and processor time
beyond what a model of that size can need. It opens nothing: what it makes goes to the keeper.
"""

from __future__ import annotations

import resource
import signal
from types import FrameType
from typing import Final

from din.errors import TooLarge
from din.sandbox.enter import Surroundings, confine, leave_files, leave_others
from din.slicing.skeleton import SKELETON_BYTES_MAX
from din.system.privacy import hide_memory, show_memory

ADDRESS_BYTES_BASE: Final = 2 * 1024**3
"""Interpreter, libraries and their threads' stacks; address space, of which little is resident."""

COPIES_MAX: Final = 6
"""Of what is parsed, the model without its weights: message, copies, slices, their bytes."""

CPU_SECONDS_MAX: Final = 240
CPU_SECONDS_GRACE: Final = 10


def part_from_others() -> Surroundings:
    """First step, before the imports; single-threaded."""
    show_memory()  # else the kernel lets us not say who we are in a namespace of our own
    try:
        return leave_others()
    finally:
        hide_memory()


def give_up(
    found: Surroundings, model_bytes: int, mapped_bytes: int, *, is_insecure: bool = False
) -> int:
    """Last step, after the imports, for a model file of this size, which is mapped with the files
    beside it; the level that was reached. Raises Unavailable and OSError as `sandbox.confine`."""
    _lower(resource.RLIMIT_AS, address_bytes_max(model_bytes, mapped_bytes), 0)
    signal.signal(signal.SIGXCPU, _out_of_time)
    _lower(resource.RLIMIT_CPU, CPU_SECONDS_MAX, CPU_SECONDS_GRACE)
    return confine(leave_files(found), has_threads=False, is_insecure=is_insecure)


def address_bytes_max(model_bytes: int, mapped_bytes: int) -> int:
    """How much such a model may take, mapped files included."""
    parsed_bytes = min(model_bytes, SKELETON_BYTES_MAX)
    return ADDRESS_BYTES_BASE + mapped_bytes + COPIES_MAX * parsed_bytes


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
