"""The text of a join token: what is taken, what is said of the rest, and that it stays secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.errors import UsageError
from din.wire.join_token import TEXT_BYTES_MAX, JoinToken, parse_join_token

HASH, ID, SECRET = "5f" * 32, "434d5aaa", "s3cret_-AAAAAAAAAAAAAA"
TOKEN = JoinToken(HASH, ID, SECRET)
TEXT = f"DIN1.{HASH}.{ID}.{SECRET}"


def test_a_token_is_its_text_and_back_with_space_around_it() -> None:
    assert TOKEN.text == TEXT
    assert len(TEXT) == 101
    for pasted in (TEXT, f"  {TEXT}\n", f"{TEXT}\r\n"):
        assert parse_join_token(pasted) == TOKEN


def test_no_representation_shows_the_secret() -> None:
    assert SECRET not in f"{TOKEN!r} {TOKEN} {[TOKEN]} {(TOKEN,)}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (SECRET, "does not begin with DIN1."),
        (TEXT.removeprefix("DIN1."), "does not begin with DIN1."),
        (TEXT.replace("DIN1", "DIN2"), "begins with 'DIN2'; this release knows DIN1"),
        (TEXT.replace("DIN1", "din1"), "does not begin with DIN1."),
        (TEXT.rpartition(".")[0], "has 3 parts instead of 4"),
        (f"{TEXT}.more", "has 5 parts instead of 4"),
        (TEXT.replace(HASH, HASH[:-1]), "the hash of the authority"),
        (TEXT.replace(HASH, HASH.upper()), "the hash of the authority"),
        (TEXT.replace(ID, "434D5AAA"), "the id in the join token is not 8 lowercase hex"),
        (TEXT.replace(ID, ""), "the id"),
        (TEXT[:-1], "the secret in the join token is not 22 letters"),
        (TEXT[:-1] + "é", "the secret"),
        (TEXT[:-1] + "\n" + "A", "the secret"),
        (TEXT + "A" * TEXT_BYTES_MAX, f"has 101 characters, not {101 + TEXT_BYTES_MAX}"),
    ],
)
def test_what_is_wrong_is_named_and_never_repeated(text: str, words: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_join_token(text)
    assert words in told.value.message
    assert SECRET[:8] not in told.value.story()
    assert "din token create" in told.value.hint


@given(st.text(max_size=300))
def test_any_text_is_a_token_or_a_usage_error(text: str) -> None:
    try:
        token = parse_join_token(text)
    except UsageError:
        return
    assert token.text == text.strip()
