"""Frames that a worker makes of tensors, and frames that others made."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from din.backends.contract import NUMPY_TYPES
from din.domain.tensor import DTYPE_BYTES, ZSTD, TensorMeta
from din.errors import DeadlineExceeded, SpoiledTensor
from din.worker.compression import (
    COMPRESSED_BYTES_MIN,
    PIECE_BYTES,
    WINDOW_BYTES_MAX,
    Compressor,
)

COUNT = 32 * 1024
PLAIN = np.arange(COUNT, dtype=np.uint16) // 100


def meta_of(array: np.ndarray, frame: bytes, dtype: str = "UINT16") -> TensorMeta:
    return TensorMeta("t", dtype, array.shape, len(frame), ZSTD)


def frame_of(array: np.ndarray) -> bytes:
    frame = Compressor().compress(array)
    assert frame is not None
    return frame


def read(frame: bytes, array: np.ndarray = PLAIN) -> np.ndarray:
    return Compressor().decompress(memoryview(frame), meta_of(array, frame))


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_every_datatype_comes_back_bit_for_bit(dtype: str) -> None:
    codes = np.random.default_rng(5).integers(0, 3, COUNT).astype(np.uint8)
    if dtype == "BOOL":
        codes //= 2
    array = codes.view(NUMPY_TYPES[dtype]).reshape(4, 1, -1)
    frame = frame_of(array)
    assert len(frame) < array.nbytes
    found = Compressor().decompress(memoryview(frame), meta_of(array, frame, dtype))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def test_infinities_and_what_is_no_number_come_back_bit_for_bit() -> None:
    array = np.tile(np.array([np.nan, np.inf, -0.0, 1e-45], np.float32), COUNT)
    frame = frame_of(array)
    found = Compressor().decompress(memoryview(frame), meta_of(array, frame, "FP32"))
    assert found.tobytes() == array.tobytes()


def test_a_transposed_tensor_is_compressed_row_by_row() -> None:
    array = PLAIN.reshape(64, -1).T
    assert not array.flags.c_contiguous
    frame = frame_of(array)
    assert read(frame, array).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(0, np.float32),
        np.zeros((), np.float32),
        np.zeros(COMPRESSED_BYTES_MIN - 1, np.uint8),
        np.random.default_rng(1).integers(0, 256, 10 * COMPRESSED_BYTES_MIN, np.uint8),
    ],
    ids=["of no element", "of one element", "small", "of noise"],
)
def test_tensors_cross_as_they_are_where_compressing_spares_nothing(array: np.ndarray) -> None:
    assert Compressor().compress(array) is None


def test_the_smallest_tensor_that_is_worth_it_is_compressed() -> None:
    assert Compressor().compress(np.zeros(COMPRESSED_BYTES_MIN, np.uint8)) is not None


@pytest.mark.parametrize("more", [-1, 0, 1, PIECE_BYTES, PIECE_BYTES + 7])
def test_a_large_tensor_is_compressed_in_pieces_that_make_one_frame(more: int) -> None:
    array = np.arange(PIECE_BYTES + more, dtype=np.uint32).view(np.uint8)[: PIECE_BYTES + more]
    looks: list[None] = []
    frame = Compressor().compress(array, lambda: looks.append(None))
    assert frame is not None
    found = Compressor().decompress(memoryview(frame), meta_of(array, bytes(frame), "UINT8"))
    assert found.tobytes() == array.tobytes()
    assert len(looks) >= array.nbytes / PIECE_BYTES


def test_noise_in_pieces_is_given_up_before_its_end() -> None:
    noise = np.random.default_rng(3).integers(0, 256, 2 * PIECE_BYTES, np.uint8)
    array = np.concatenate([noise, noise[: PIECE_BYTES // 16]])
    looks: list[None] = []
    assert Compressor().compress(array, lambda: looks.append(None)) is None
    assert len(looks) < 1 + 3


def test_compressing_ends_where_somebody_says_so() -> None:
    looks: list[None] = []

    def stop() -> None:
        looks.append(None)
        if len(looks) == 3:
            raise DeadlineExceeded("now")

    with pytest.raises(DeadlineExceeded):
        Compressor().compress(np.zeros(9 * PIECE_BYTES, np.uint8), stop)
    it = Compressor()
    assert it.compress(PLAIN) is not None


def test_the_time_of_both_ways_is_counted_once() -> None:
    it = Compressor()
    assert it.take_spent_us() == 0
    array = np.zeros(4 * 1024 * 1024, np.uint8)
    frame = it.compress(array)
    assert frame is not None
    assert it.take_spent_us() > 0
    it.decompress(memoryview(frame), TensorMeta("t", "UINT8", array.shape, len(frame), ZSTD))
    assert it.take_spent_us() > 0
    assert it.take_spent_us() == 0


def single_segment(content_bytes: int, content: bytes) -> bytes:
    """A frame by hand (RFC 8878): content size of 8 bytes, a checksum, one window over all."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b11100100]) + struct.pack("<Q", content_bytes) + content


def other(**settings: object) -> bytes:
    return zstandard.ZstdCompressor(**{"level": 1, "write_checksum": True, **settings}).compress(
        PLAIN.tobytes()
    )


def trained() -> zstandard.ZstdCompressionDict:
    samples = [PLAIN[start : start + 500].tobytes() for start in range(0, COUNT, 100)]
    return zstandard.train_dictionary(4096, samples)


def streamed() -> bytes:
    packing = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj()
    return packing.compress(PLAIN.tobytes()) + packing.flush()


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (single_segment(8 * 2**30, bytes(1000)), "announces 8589934592 bytes, its shape 65536"),
        (single_segment(2**64 - 2, bytes(1000)), "announces 18446744073709551614 bytes"),
        (frame_of(PLAIN[:-1]), "announces 65534 bytes"),
        (frame_of(np.append(PLAIN, 1).astype(np.uint16)), "announces 65538 bytes"),
        (streamed(), "announces no size"),
        (frame_of(PLAIN) * 2, "unused data"),
        (frame_of(PLAIN) + b"x", "unused data"),
        (b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + frame_of(PLAIN), "announces"),
        (frame_of(PLAIN)[:-1], "cannot be read"),
        (frame_of(PLAIN)[:20], "cannot be read"),
        (b"", "cannot be read"),
        (b"\x28\xb5\x2f\xfd", "cannot be read"),
        (bytes(100), "cannot be read"),
        (other(write_checksum=False), "no checksum"),
        (other(dict_data=trained()), r"needs dictionary \d+"),
    ],
    ids=[
        "says 8 GiB",
        "says nearly 16 EiB",
        "shorter",
        "longer",
        "of no size",
        "two frames",
        "a byte more",
        "a frame to be skipped before",
        "truncated by a byte",
        "truncated in its first block",
        "nothing",
        "a magic number alone",
        "zeros",
        "without a checksum",
        "with a dictionary",
    ],
)
def test_a_frame_that_is_not_exactly_the_tensor_is_refused_by_name(
    frame: bytes, words: str
) -> None:
    with pytest.raises(SpoiledTensor, match=words) as refused:
        read(frame)
    assert refused.value.message.startswith("input 't' UINT16 [32768] came compressed into ")


def test_a_frame_that_refers_back_too_far_is_refused() -> None:
    frame = bytearray(other())
    assert frame[4] & 0x20, "one window over all"
    frame[4] &= ~0x20
    frame[5:5] = bytes([(25 - 10) << 3])  # of 32 MiB instead
    with pytest.raises(SpoiledTensor, match="refers back over 33554432 bytes"):
        read(bytes(frame))


def test_a_tensor_larger_than_any_window_is_read() -> None:
    array = np.zeros(WINDOW_BYTES_MAX + 1, np.uint16)
    assert read(frame_of(array), array).nbytes == array.nbytes


class Starved:
    """The library where the system gives it no memory for its own tables."""

    def compress(self, data: object) -> bytes:
        raise zstandard.ZstdError("cannot compress: Allocation error : not enough memory")

    def decompress(self, data: object, *, allow_extra_data: bool) -> bytes:
        raise zstandard.ZstdError("decompression error: Allocation error : not enough memory")


def test_a_lack_of_memory_is_no_fault_of_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Compressor()
    monkeypatch.setattr(it, "_packing", Starved())
    monkeypatch.setattr(it, "_unpacking", Starved())
    with pytest.raises(MemoryError):
        it.compress(PLAIN)
    with pytest.raises(MemoryError):
        it.decompress(memoryview(FRAME), meta_of(PLAIN, FRAME))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_flipped_bits_are_noticed_or_change_nothing(data: st.DataObject) -> None:
    frame = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 4))):
        bit = data.draw(st.integers(0, 8 * len(frame) - 1))
        frame[bit // 8] ^= 1 << bit % 8
    try:
        found = read(bytes(frame))
    except SpoiledTensor:
        return
    assert found.tobytes() == PLAIN.tobytes()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_behind_a_good_head_are_refused(tail: bytes) -> None:
    with pytest.raises(SpoiledTensor):
        read(FRAME[:8] + tail)


FRAME = frame_of(PLAIN)
