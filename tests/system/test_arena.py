import mmap
import os
from pathlib import Path

import pytest

from din.errors import Internal, UsageError
from din.system.arena import REGION_BYTES_MAX, arena_layout, create_arena, map_arena
from din.system.descriptors import (
    DESCRIPTORS_MAX,
    close_all,
    control_pair,
    receive_message,
    send_message,
)
from din.wire.worker import ArenaLayout


def test_both_mappings_see_the_same_bytes():
    layout = arena_layout(5000, 100)
    assert layout == ArenaLayout(3 * mmap.PAGESIZE, 2 * mmap.PAGESIZE)
    descriptor = create_arena(layout)
    with map_arena(descriptor, layout) as one, map_arena(descriptor, layout) as two:
        one[4999] = 7
        assert two[4999] == 7
    os.close(descriptor)


def test_an_arena_can_neither_shrink_nor_grow():
    descriptor = create_arena(arena_layout(4096, 4096))
    for size in (0, 4096, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_untouched_pages_cost_nothing():
    descriptor = create_arena(arena_layout())
    assert os.fstat(descriptor).st_size == 128 * 1024 * 1024
    assert os.fstat(descriptor).st_blocks == 0
    os.close(descriptor)


def test_a_file_of_another_size_or_without_seals_is_no_arena():
    layout = arena_layout(4096, 4096)
    descriptor = create_arena(layout)
    with pytest.raises(Internal, match="layout"):
        map_arena(descriptor, ArenaLayout(3 * 4096, 4096))
    with pytest.raises(Internal, match="layout"):
        map_arena(descriptor, ArenaLayout(8192, 8192))
    os.close(descriptor)
    plain = os.memfd_create("plain")
    os.ftruncate(plain, layout.arena_bytes)
    with pytest.raises(Internal, match="sealed"):
        map_arena(plain, layout)
    os.close(plain)


@pytest.mark.parametrize("nbytes", [0, -1, REGION_BYTES_MAX + 1])
def test_a_silly_region_size_is_refused(nbytes: int):
    with pytest.raises(UsageError, match="output region"):
        arena_layout(4096, nbytes)


def test_descriptors_arrive_beside_the_message_and_close_on_exec():
    ours, theirs = control_pair()
    with ours, theirs:
        read_end, write_end = os.pipe()
        send_message(ours, b"two pipes", [read_end, write_end])
        close_all([read_end, write_end])
        data, received = receive_message(theirs, 100)
        assert data == b"two pipes"
        os.write(received[1], b"x")
        assert os.read(received[0], 9) == b"x"
        assert not any(os.get_inheritable(each) for each in received)
        close_all(received)
        close_all(received)  # closing twice harms nobody


def test_a_message_over_its_limit_closes_what_came_with_it():
    ours, theirs = control_pair()
    with ours, theirs:
        before = len(list(Path("/proc/self/fd").iterdir()))
        send_message(ours, bytes(101), [ours.fileno()])
        with pytest.raises(Internal, match="over 100 bytes"):
            receive_message(theirs, 100)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        with pytest.raises(Internal, match="descriptors"):
            send_message(ours, b"x", [ours.fileno()] * (DESCRIPTORS_MAX + 1))


def test_a_closed_end_is_an_empty_message():
    ours, theirs = control_pair()
    ours.close()
    with theirs:
        assert receive_message(theirs, 100) == (b"", [])
