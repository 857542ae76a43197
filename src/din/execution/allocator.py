"""Slots in one region of an arena: first fit, low offsets first.

Low offsets come first so that a mostly idle region keeps using the same pages, which stay in the
caches. Each allocation has a generation of its own: freeing a slot twice, or a slot whose place was
given to somebody else since, is an error and never frees a stranger's bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from msgspec import Struct

from din.domain.tensor import TENSOR_ALIGNMENT_BYTES, aligned

SLOTS_MAX: Final = 4096
"""Slots in use at once in one region."""


class SlotError(Exception):
    """A slot was used against the rules: a mistake of the program, never of a caller's data."""


class AlreadyFreeError(SlotError):
    """The slot is not in use any more."""


class StaleSlotError(SlotError):
    """The place of the slot belongs to a newer slot."""


class Slot(Struct, frozen=True):
    """A piece of the region; `nbytes` is what was asked for."""

    offset: int
    nbytes: int
    generation: int


class Allocator:
    """Hands out slots of a region of `size_bytes`, each aligned to 64 bytes."""

    def __init__(self, size_bytes: int) -> None:
        usable = size_bytes - size_bytes % TENSOR_ALIGNMENT_BYTES
        self.size_bytes: Final = size_bytes
        self._gap_offsets: list[int] = [0] if usable > 0 else []
        self._gap_bytes: list[int] = [usable] if usable > 0 else []
        self._used: dict[int, Slot] = {}
        self._generation = 0

    def __len__(self) -> int:
        return len(self._used)

    @property
    def free_bytes(self) -> int:
        """Bytes in all gaps together; one slot may need a single gap that is smaller."""
        return sum(self._gap_bytes)

    def could_ever_fit(self, nbytes: int) -> bool:
        """Whether an empty region would take a slot of this size."""
        return _footprint(nbytes) <= self.size_bytes - self.size_bytes % TENSOR_ALIGNMENT_BYTES

    def allocate(self, nbytes: int) -> Slot | None:
        """The lowest gap that fits, or None when there is none now."""
        if nbytes < 0:
            raise SlotError(f"a slot of {nbytes} bytes was asked for")
        if len(self._used) >= SLOTS_MAX:
            return None
        needed = _footprint(nbytes)
        for position, gap in enumerate(self._gap_bytes):
            if gap >= needed:
                return self._take(position, nbytes, needed)
        return None

    def free(self, slot: Slot) -> None:
        """Give a slot back. Raises AlreadyFreeError or StaleSlotError."""
        current = self._used.get(slot.offset)
        if current is None:
            raise AlreadyFreeError(
                f"slot at {slot.offset} (generation {slot.generation}) is not in use"
            )
        if current.generation != slot.generation:
            raise StaleSlotError(
                f"slot at {slot.offset} is of generation {current.generation} now, "
                f"not {slot.generation}"
            )
        del self._used[slot.offset]
        self._add_gap(slot.offset, _footprint(slot.nbytes))

    def _take(self, position: int, nbytes: int, needed: int) -> Slot:
        offset = self._gap_offsets[position]
        rest = self._gap_bytes[position] - needed
        if rest:
            self._gap_offsets[position] = offset + needed
            self._gap_bytes[position] = rest
        else:
            del self._gap_offsets[position]
            del self._gap_bytes[position]
        self._generation += 1
        slot = Slot(offset, nbytes, self._generation)
        self._used[offset] = slot
        return slot

    def _add_gap(self, offset: int, size: int) -> None:
        position = bisect_left(self._gap_offsets, offset)
        offsets, sizes = self._gap_offsets, self._gap_bytes
        if position < len(offsets) and offset + size == offsets[position]:
            offsets[position] = offset
            sizes[position] += size
        else:
            offsets.insert(position, offset)
            sizes.insert(position, size)
        if position and offsets[position - 1] + sizes[position - 1] == offset:
            sizes[position - 1] += sizes[position]
            del offsets[position]
            del sizes[position]


def _footprint(nbytes: int) -> int:
    # An empty tensor takes a line too, so that each slot has an offset of its own.
    return aligned(nbytes) or TENSOR_ALIGNMENT_BYTES
