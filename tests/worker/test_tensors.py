import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.backends.contract import NUMPY_TYPES
from din.domain.tensor import BYTES_ELEMENTS_MAX, DTYPE_BYTES, RANK_MAX, TensorMeta, TensorSpec
from din.errors import BadTensor, ExecutionFailed, TooLarge
from din.worker.tensors import (
    array_at,
    check_output,
    decode_bytes_tensor,
    encode_bytes_tensor,
    resolved_shape,
)


def elements(*items: bytes) -> np.ndarray:
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array


def decoded(data: bytes, *shape: int) -> np.ndarray:
    return decode_bytes_tensor(memoryview(data), TensorMeta("t", "BYTES", shape, len(data)))


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_bytes_tensors_come_back_exactly(items: list[bytes]):
    """T39."""
    data = encode_bytes_tensor(elements(*items))
    assert decoded(data, len(items)).tolist() == items


def test_bytes_tensors_keep_their_shape():
    """T38, T39."""
    data = encode_bytes_tensor(elements(b"a", b"", b"ccc", b"d"))
    assert data[:5] == b"\x01\x00\x00\x00a"
    assert decoded(data, 2, 2).tolist() == [[b"a", b""], [b"ccc", b"d"]]
    assert decoded(b"", 0).shape == (0,)
    assert decoded(b"", 3, 0).shape == (3, 0)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_are_decoded_or_refused(data: bytes, count: int):
    try:
        found = decoded(data, count)
    except BadTensor:
        return
    assert encode_bytes_tensor(found) == data


@pytest.mark.parametrize(
    ("data", "count", "words"),
    [
        (b"\x01\x00\x00", 1, "inside element 0 of 1"),
        (b"\x02\x00\x00\x00a", 1, "inside element 0 of 1"),
        (b"\xff\xff\xff\xff", 1, "inside element 0 of 1"),
        (b"\x01\x00\x00\x00ab", 1, "1 bytes after its 1 elements"),
        (b"\x00\x00\x00\x00", 2, "inside element 1 of 2"),
        (b"", BYTES_ELEMENTS_MAX + 1, "at most"),
    ],
)
def test_bytes_that_do_not_add_up_are_refused(data: bytes, count: int, words: str):
    with pytest.raises(BadTensor) as caught:
        decoded(data, count)
    assert words in caught.value.story()


def test_views_share_the_memory():
    memory = memoryview(bytearray(256))
    view = array_at(memory, TensorMeta("t", "FP32", (2, 3), 24), 64)
    view[:] = 1
    assert bytes(memory[64:68]) == np.float32(1).tobytes()
    assert array_at(memory, TensorMeta("t", "FP32", (0, 3), 0), 256).shape == (0, 3)


def test_every_dtype_has_a_numpy_type_of_its_size():
    assert {word: dtype.itemsize for word, dtype in NUMPY_TYPES.items()} == DTYPE_BYTES


def test_shapes_are_resolved_by_the_sizes_of_the_inputs():
    assert resolved_shape(TensorSpec("y", "FP32", ("B", 3)), {"B": 2}) == (2, 3)
    assert resolved_shape(TensorSpec("y", "FP32", ("K", 3)), {"B": 2}) is None
    assert resolved_shape(TensorSpec("y", "FP32", (None,)), {}) is None
    assert resolved_shape(TensorSpec("y", "FP32", None), {}) is None


def test_an_engine_that_breaks_its_word_about_a_dtype_is_caught():
    check_output(TensorSpec("y", "FP32", None), np.zeros(1, np.float32))
    with pytest.raises(ExecutionFailed, match="'y'"):
        check_output(TensorSpec("y", "FP32", None), np.zeros(1))
    with pytest.raises(ExecutionFailed):
        check_output(TensorSpec("y", "BYTES", None), np.zeros(1))


def test_an_output_that_no_answer_carries_is_refused():
    deep = TensorSpec("y", "FP32", None)
    check_output(deep, np.zeros((1,) * RANK_MAX, np.float32))
    with pytest.raises(TooLarge, match=f"{RANK_MAX + 1} dimensions"):
        check_output(deep, np.zeros((1,) * (RANK_MAX + 1), np.float32))
    texts = TensorSpec("y", "BYTES", (None,))
    many = np.full(BYTES_ELEMENTS_MAX + 1, b"", np.object_)
    check_output(texts, many[1:])
    with pytest.raises(TooLarge, match="elements"):
        check_output(texts, many)
