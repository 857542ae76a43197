"""Tag, length, value: what survives the trip and what is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.errors import DinError, TooLarge, UsageError
from din.wire.tlv import ENTRY_HEADER, Reader, Writer, split

TAGS = frozenset({1, 2, 3})
PRINTABLE = st.text(st.characters(categories=("L", "N", "P", "S")), max_size=20)


def entry(tag: int, value: bytes) -> bytes:
    return ENTRY_HEADER.pack(tag, len(value)) + value


def reader(body: bytes) -> Reader:
    return Reader("body", body, TAGS, 500)


def test_absent_values_leave_no_byte() -> None:
    writer = Writer("body", 100)
    writer.text(1, "a", None, 10)
    writer.text(1, "a", "", 10)
    writer.integer(2, "b", None, 10)
    writer.texts(3, "c", (), 4, 10)
    assert writer.body() == b""


@given(number=st.integers(0, 2**64 - 1))
def test_an_integer_is_as_short_as_its_value_and_comes_back(number: int) -> None:
    writer = Writer("body", 100)
    writer.integer(1, "number", number, 2**64 - 1)
    body = writer.body()
    assert reader(body).integer(1, "number", 2**64 - 1) == number
    assert len(body) == 3 + max(1, (number.bit_length() + 7) // 8)


@given(
    texts=st.lists(PRINTABLE, max_size=5), pairs=st.dictionaries(PRINTABLE, PRINTABLE, max_size=3)
)
def test_lists_and_mappings_come_back(texts: list[str], pairs: dict[str, str]) -> None:
    writer = Writer("body", 5000)
    writer.texts(1, "texts", texts, 5, 200)
    writer.pairs(2, "pairs", pairs, 3, 200)
    back = Reader("body", writer.body(), TAGS, 5000)
    assert back.texts(1, "texts", 5, 200) == tuple(texts)
    assert back.pairs(2, "pairs", 3, 200) == pairs


def test_unknown_tags_are_skipped_even_when_they_repeat() -> None:
    body = entry(200, b"future") + entry(1, b"now") + entry(200, b"again")
    assert reader(body).text(1, "a", 10) == "now"


def test_a_known_tag_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="tag 1 twice"):
        reader(entry(1, b"a") + entry(1, b"b"))


@pytest.mark.parametrize("body", [b"\x01", b"\x01\x00", entry(1, b"abc")[:-1]])
def test_a_body_that_ends_early_says_how_many_bytes_are_left(body: bytes) -> None:
    with pytest.raises(UsageError, match="ends early"):
        reader(body)


def test_a_list_item_that_points_past_its_list_is_refused() -> None:
    with pytest.raises(UsageError, match="announces 9 bytes, 2 are left"):
        reader(entry(1, b"\x09ab")).texts(1, "labels", 4, 20)


def test_limits_name_field_value_and_limit() -> None:
    writer = Writer("body", 100)
    with pytest.raises(TooLarge, match=r"name 'aaaa' takes 4 bytes, the limit is 3"):
        writer.text(1, "name", "aaaa", 3)
    with pytest.raises(TooLarge, match=r"labels holds 3 entries, the limit is 2"):
        writer.texts(1, "labels", ("a", "b", "c"), 2, 5)
    with pytest.raises(UsageError, match=r"cores 11 is outside 0..10"):
        writer.integer(1, "cores", 11, 10)
    with pytest.raises(TooLarge, match=r"takes 6 bytes, the limit is 5"):
        reader(entry(1, b"abcdef")).text(1, "name", 5)
    with pytest.raises(TooLarge, match=r"body takes 501 bytes, the limit is 500"):
        split("body", bytes(501), TAGS, 500)


def test_a_body_over_its_limit_names_its_largest_fields() -> None:
    writer = Writer("registration", 20)
    writer.text(1, "small", "a", 30)
    writer.text(2, "large", "b" * 30, 30)
    with pytest.raises(TooLarge, match="37 bytes, the limit is 20") as caught:
        writer.body()
    assert "large 33, small 4" in caught.value.hint


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\nb", b"\x1b[31m"])
def test_text_that_cannot_be_shown_is_refused(value: bytes) -> None:
    with pytest.raises(UsageError):
        reader(entry(1, value)).text(1, "name", 20)


@given(body=st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_our_errors(body: bytes) -> None:
    with suppress(DinError):
        found = reader(body)
        found.text(1, "a", 100)
        found.pairs(2, "b", 4, 40)
        found.integer(3, "c", 1000)
