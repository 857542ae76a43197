"""What a key looks like, what is kept of it, and that its secret is told to nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.access.keys import (
    KeyRecord,
    check_key_order,
    digest_of,
    format_key,
    is_secret_of,
    parse_key,
)
from din.domain.keys import CreateKey, KeyCreated, KeyView
from din.errors import UsageError

KEY = format_key(bytes.fromhex("0badcafe"), bytes(range(32)))
SECRET = KEY.partition(".")[2]


def record(**fields) -> KeyRecord:
    return KeyRecord(
        **{
            "id": "0badcafe",
            "secret_sha256": digest_of(SECRET),
            "name": "ci",
            "tenant": "default",
            "scopes": ("infer",),
            "created_ms": 0,
            "created_by": "local",
            **fields,
        }
    )


@given(st.binary(min_size=4, max_size=4), st.binary(min_size=32, max_size=32))
def test_a_key_reads_as_it_was_written(key_id: bytes, secret: bytes) -> None:
    text = format_key(key_id, secret)
    shown = parse_key(text)
    assert (shown.id, f"din_{shown.id}.{shown.secret}") == (key_id.hex(), text)
    assert len(shown.secret) == 43


@pytest.mark.parametrize(
    "text",
    [
        "",
        "din_",
        KEY[:-1],
        KEY + "A",
        KEY + "\n",
        KEY.upper(),
        KEY.replace("din_", "sk-"),
        KEY.replace(".", "-"),
        "din_0badcaf." + SECRET,
        "x" * 100_000,
    ],
)
def test_what_is_no_key_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_key(text)
    assert SECRET[:20] not in caught.value.story()
    assert f"{len(text)} characters" in caught.value.message


def test_no_text_of_a_key_shows_its_secret() -> None:
    view = KeyView(
        id="0badcafe",
        name="ci",
        tenant="default",
        scopes=("infer",),
        state="active",
        created_at="",
        created_by="",
    )
    for shown in (parse_key(KEY), KeyCreated(key=KEY, view=view), record()):
        assert SECRET not in repr(shown)
        assert SECRET not in str(shown)


def test_only_the_right_secret_counts() -> None:
    wrong = parse_key(format_key(bytes.fromhex("0badcafe"), bytes(32)))
    assert is_secret_of(parse_key(KEY), record())
    assert not is_secret_of(wrong, record())
    assert not is_secret_of(parse_key(KEY), None)


def test_a_key_ends_when_it_expires_or_is_revoked() -> None:
    assert record(expires_ms=10).state(9) == "active"
    assert record(expires_ms=10).state(10) == "expired"
    assert record(expires_ms=10, revoked_ms=5).state(9) == "revoked"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "1 to 64"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "x" * 65}, "1 to 64"),
        ({"scopes": ()}, "at least one"),
        ({"scopes": ("infer", "infer")}, "each once"),
        ({"tenant": "Plant 4"}, "lowercase"),
        ({"life_s": 0}, "life_s is 0"),
        ({"requests_per_s": 0.0}, "requests_per_s is 0"),
        ({"requests_per_s": float("nan")}, "requests_per_s is nan"),
        ({"burst": 5}, "without requests_per_s"),
        ({"body_bytes_max": 0}, "body_bytes_max is 0"),
    ],
)
def test_an_order_out_of_bounds_names_its_field(fields, said: str) -> None:
    check_key_order(CreateKey(name="ci", scopes=("infer",)))
    with pytest.raises(UsageError) as caught:
        check_key_order(CreateKey(**{"name": "ci", "scopes": ("infer",), **fields}))
    assert said in caught.value.story()
