"""What the workers of one slice are made from."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from din.domain.model import Slice
from din.errors import Unavailable
from din.system.descriptors import close_all


class Allowance(Struct, frozen=True):
    """What one worker may take before it ends, or is replaced; 0 = without end."""

    memory_mib_max: int = 0
    growth_mib_max: int = 0
    requests_max: int = 0


class Recipe(Struct, frozen=True):
    """The same for each worker of a pool."""

    slice_: Slice
    artifact_paths: tuple[str, ...]
    backend_options: dict[str, str]
    wants_direct: bool
    allowance: Allowance


async def open_paths(paths: Sequence[str]) -> list[int]:
    """The files themselves. Raises Unavailable: it is this node's trouble, not the model's."""
    opened: list[int] = []
    try:
        opened.extend(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths)
    except OSError as error:
        close_all(opened)
        raise Unavailable(
            f"the slice's file {error.filename} cannot be opened: {error.strerror}",
            hint="it is fetched again when the model is deployed again",
        ) from error
    return opened
