"""The frame cutter, fed in any pieces."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_harness import run

from din.errors import DinError
from din.transport.limits import LinkLimits
from din.transport.reader import BUFFER_BYTES, FrameReader
from din.wire.frame import Unknown, encode_head
from din.wire.messages import AnyMessage, Bye, Cancel, Ping

LIMITS = LinkLimits(body_bytes_max=1 << 20)
UNKNOWN = b"DN\x01\x00\x08\x00\x00\x00" + (100).to_bytes(8, "little") + b"\x92\xa5LATER\x01"


class Kept:
    def __init__(self, discards: bool = False) -> None:
        self.frames: list[tuple[AnyMessage | Unknown, bytes | None, int]] = []
        self.discards = discards

    def place(self, message: AnyMessage, nbytes: int) -> memoryview | None:
        return None if self.discards else memoryview(bytearray(nbytes))

    def take(self, message, body, descriptor_count) -> None:
        self.frames.append((message, None if body is None else bytes(body), descriptor_count))


def feed(reader: FrameReader, data: bytes, sizes: list[int]) -> None:
    turn = 0
    while data:
        room = reader.room()
        assert len(room) > 0
        nbytes = min(len(room), len(data), sizes[turn % len(sizes)])
        room[:nbytes] = data[:nbytes]
        data = data[nbytes:]
        reader.received(nbytes)
        turn += 1


MESSAGES = st.one_of(
    st.builds(Ping, st.integers(0, 2**63)),
    st.builds(Bye, st.text(max_size=40)),
    st.builds(Bye, st.integers(BUFFER_BYTES - 40, BUFFER_BYTES * 3).map("x".__mul__)),
    st.builds(Cancel, st.integers(0, 9), st.integers(0, 9), st.text(), st.integers(0, 9)),
)
BODIES = st.one_of(st.just(b""), st.binary(max_size=300), st.just(b"ab" * BUFFER_BYTES))
SIZES = st.lists(st.integers(1, 3 * BUFFER_BYTES), min_size=1, max_size=8)


@given(st.lists(st.tuples(MESSAGES, BODIES, st.integers(0, 15)), max_size=6), SIZES, st.booleans())
@settings(max_examples=150, deadline=None)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames, sizes, discards) -> None:
    data = b"".join(encode_head(m, len(b), descriptor_count=n) + b for m, b, n in frames)
    kept = Kept(discards)
    reader = FrameReader(kept, LIMITS)
    feed(reader, data, sizes)
    expected = [(m, None if discards or not b else b, n) for m, b, n in frames]
    assert kept.frames == expected
    assert reader.is_between_frames


@given(st.binary(max_size=200), st.integers(1, 50))
@settings(max_examples=300, deadline=None)
def test_garbage_ends_in_a_typed_error_or_waits_for_more(data: bytes, size: int) -> None:
    reader = FrameReader(Kept(), LIMITS)
    with suppress(DinError):
        feed(reader, data, [size])


@given(st.integers(0, 60), st.integers(0, 255), st.lists(st.integers(1, 64), min_size=1))
@settings(max_examples=300, deadline=None)
def test_a_damaged_frame_ends_in_a_typed_error_or_in_frames(at: int, value: int, sizes) -> None:
    data = bytearray(encode_head(run(64), 64) + bytes(64) + encode_head(Ping(3)))
    data[at % len(data)] = value
    with suppress(DinError):
        feed(FrameReader(Kept(), LIMITS), bytes(data), sizes)


def test_an_unknown_kind_is_skipped_with_its_body() -> None:
    kept = Kept()
    reader = FrameReader(kept, LIMITS)
    feed(reader, UNKNOWN + bytes(100) + encode_head(Ping(1)), [7])
    assert kept.frames == [(Unknown("LATER"), None, 0), (Ping(1), None, 0)]


def test_a_paused_reader_holds_back_what_it_has() -> None:
    class Pausing(Kept):
        def take(self, message, body, descriptor_count) -> None:
            super().take(message, body, descriptor_count)
            reader.is_paused = True

    kept = Pausing()
    reader = FrameReader(kept, LIMITS)
    feed(reader, encode_head(Ping(1)) + encode_head(Ping(2)), [1000])
    assert len(kept.frames) == 1
    reader.is_paused = False
    reader.parse()
    assert [each[0] for each in kept.frames] == [Ping(1), Ping(2)]


def test_a_stopped_reader_gives_back_the_body_under_way() -> None:
    reader = FrameReader(Kept(), LIMITS)
    feed(reader, encode_head(run(640), 640) + b"x" * 100, [1000])
    assert not reader.is_between_frames
    cut = reader.stop()
    assert cut is not None
    assert cut[0] == run(640)
    assert len(cut[1]) == 640
    assert reader.stop() is None


@pytest.mark.parametrize("data", [b"GE", b"\x16\x03", b"\x00\x00"])
def test_strangers_are_known_by_two_bytes(data: bytes) -> None:
    with pytest.raises(DinError, match="not a DIN frame"):
        feed(FrameReader(Kept(), LIMITS), data, [2])
