from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from din.domain.tensor import aligned
from din.execution.allocator import (
    SLOTS_MAX,
    Allocator,
    AlreadyFreeError,
    Slot,
    SlotError,
    StaleSlotError,
)


def test_slots_are_aligned_and_low_offsets_come_first():
    allocator = Allocator(1024)
    first, second = allocator.allocate(1), allocator.allocate(65)
    assert first is not None
    assert second is not None
    assert (first.offset, second.offset) == (0, 64)
    allocator.free(first)
    again = allocator.allocate(10)
    assert again is not None
    assert again.offset == 0
    assert again.generation not in {first.generation, second.generation}


def test_a_full_region_gives_none_and_is_whole_again_after_frees():
    allocator = Allocator(256)
    slots = [allocator.allocate(64) for _ in range(4)]
    assert allocator.allocate(1) is None
    assert allocator.allocate(0) is None
    for slot in (slots[1], slots[3], slots[0], slots[2]):
        assert slot is not None
        allocator.free(slot)
    assert allocator.allocate(256) is not None


def test_a_size_over_the_region_can_never_fit():
    allocator = Allocator(200)
    assert allocator.could_ever_fit(192)
    assert not allocator.could_ever_fit(193)
    assert allocator.allocate(193) is None
    assert Allocator(63).allocate(0) is None


def test_a_second_free_is_an_error():
    allocator = Allocator(256)
    slot = allocator.allocate(8)
    assert slot is not None
    allocator.free(slot)
    with pytest.raises(AlreadyFreeError):
        allocator.free(slot)


def test_a_stale_free_is_an_error_and_frees_nobody_else():
    allocator = Allocator(256)
    old = allocator.allocate(8)
    assert old is not None
    allocator.free(old)
    new = allocator.allocate(8)
    assert new is not None
    with pytest.raises(StaleSlotError):
        allocator.free(old)
    assert len(allocator) == 1
    with pytest.raises(SlotError):
        allocator.allocate(-1)


def test_the_number_of_slots_is_limited():
    allocator = Allocator((SLOTS_MAX + 1) * 64)
    for _ in range(SLOTS_MAX):
        assert allocator.allocate(0) is not None
    assert allocator.allocate(0) is None


class AllocatorMachine(RuleBasedStateMachine):
    SIZE = 4096

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(self.SIZE)
        self.used: list[Slot] = []

    @rule(nbytes=st.integers(0, 1500))
    def allocate(self, nbytes: int) -> None:
        slot = self.allocator.allocate(nbytes)
        if slot is None:
            assert nbytes > 0 or self.allocator.free_bytes == 0
            return
        assert slot.offset % 64 == 0
        assert slot.offset + nbytes <= self.SIZE
        self.used.append(slot)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.used:
            position = data.draw(st.integers(0, len(self.used) - 1))
            self.allocator.free(self.used.pop(position))

    @invariant()
    def slots_never_overlap_and_no_byte_is_lost(self) -> None:
        spans = sorted(
            (each.offset, each.offset + max(64, aligned(each.nbytes))) for each in self.used
        )
        for (_, end), (start, _) in pairwise(spans):
            assert end <= start
        assert self.allocator.free_bytes == self.SIZE - sum(end - start for start, end in spans)
        assert len(self.allocator) == len(self.used)

    @invariant()
    def an_empty_region_is_one_gap(self) -> None:
        if not self.used:
            slot = self.allocator.allocate(self.SIZE)
            assert slot is not None
            self.allocator.free(slot)


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
