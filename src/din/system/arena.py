"""Shared memory between a worker and whoever feeds it: one sealed memfd.

The seals keep either side from shrinking the file under the other's feet (a SIGBUS) or growing it.
Pages cost memory only once touched, so regions may be large.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

from din.errors import Internal, Unavailable, UsageError
from din.wire.worker import ArenaLayout

REGION_BYTES: Final = 64 * 1024 * 1024
"""Default size of the input region, and of the output region."""
REGION_BYTES_MAX: Final = 16 * 1024 * 1024 * 1024

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def arena_layout(input_bytes: int = REGION_BYTES, output_bytes: int = REGION_BYTES) -> ArenaLayout:
    """Layout of an arena, both regions rounded up to pages. Raises UsageError for a silly size."""
    for name, nbytes in (("input", input_bytes), ("output", output_bytes)):
        if not 0 < nbytes <= REGION_BYTES_MAX:
            raise UsageError(
                f"an arena's {name} region of {nbytes} bytes is not possible",
                hint=f"between 1 and {REGION_BYTES_MAX} bytes",
            )
    input_size = _whole_pages(input_bytes)
    return ArenaLayout(arena_bytes=input_size + _whole_pages(output_bytes), input_bytes=input_size)


def create_arena(layout: ArenaLayout, name: str = "din-arena") -> int:
    """A new sealed memfd of that size; the caller closes it. Raises Unavailable."""
    descriptor = -1
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, layout.arena_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise Unavailable(
            f"no shared memory of {layout.arena_bytes} bytes: {error.strerror}",
            hint="raise the limit of open files, or free some memory",
        ) from error
    return descriptor


def map_arena(descriptor: int, layout: ArenaLayout) -> mmap.mmap:
    """Map a whole arena for reading and writing. Raises Internal when size or seals are not those
    of an arena."""
    size = os.fstat(descriptor).st_size
    if size != layout.arena_bytes or not 0 < layout.input_bytes < layout.arena_bytes:
        raise Internal(
            f"an arena of {size} bytes does not have the layout "
            f"{layout.input_bytes} of {layout.arena_bytes} bytes"
        )
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise Internal("an arena is not sealed against shrinking")
    return mmap.mmap(descriptor, layout.arena_bytes)


def map_given_arena(descriptor: int, layout: ArenaLayout) -> mmap.mmap:
    """As `map_arena`, of what a stranger handed over as an arena. Raises Internal."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0  # no memory file at all
    if not seals & fcntl.F_SEAL_SHRINK:
        raise Internal("an arena is not sealed against shrinking")
    if not 0 < layout.input_bytes < layout.arena_bytes:
        raise Internal(f"an arena has no regions {layout.input_bytes} of {layout.arena_bytes}")
    try:
        return mmap.mmap(descriptor, layout.arena_bytes)
    except (OSError, ValueError) as error:
        raise Internal(
            f"an arena of {layout.arena_bytes} bytes cannot be mapped: {error}"
        ) from error


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
