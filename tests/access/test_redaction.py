"""Nothing secret and nothing endless reaches the audit log."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from din.access.redaction import HIDDEN, redacted, redacted_text

KEY = "din_0badcafe." + "A" * 43
TOKEN = "DIN1." + "a" * 64 + ".0badcafe." + "B" * 22
PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----"


def test_keys_and_tokens_keep_their_ids_and_lose_their_secrets() -> None:
    assert redacted_text(f"with {KEY} and more") == f"with din_0badcafe.{HIDDEN} and more"
    assert redacted_text(TOKEN).endswith(f"0badcafe.{HIDDEN}")
    assert "MHcCAQ" not in redacted_text(PEM)


def test_secret_fields_are_hidden_at_any_depth() -> None:
    shown = redacted(
        {
            "secret": "s",
            "nested": [{"api_key": "k", "password": 5, "name": "kept"}],
            "Authorization": f"Bearer {KEY}",
            "token": "",
            "token_id": "0badcafe",
        }
    )
    assert shown == {
        "secret": HIDDEN,
        "nested": [{"api_key": HIDDEN, "password": HIDDEN, "name": "kept"}],
        "Authorization": HIDDEN,
        "token": "",
        "token_id": "0badcafe",
    }


LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=2_000)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=50) | st.dictionaries(st.text(max_size=300), inner),
    max_leaves=40,
)


@given(st.dictionaries(st.text(max_size=300), VALUES, max_size=5))
def test_any_facts_can_be_written_and_none_holds_a_key(facts) -> None:
    shown = redacted({**facts, "said": f"{KEY} {TOKEN}"})
    body = msgspec.json.encode(shown)
    assert b"AAAAAAAA" not in body
    assert b"BBBBBBBB" not in body


def test_long_texts_lists_and_depths_are_cut() -> None:
    deep: dict[str, object] = {}
    for _ in range(50):
        deep = {"in": deep}
    shown = redacted({"text": "x" * 10_000, "list": list(range(10_000)), "deep": deep})
    assert len(shown["text"]) == 257
    assert len(shown["list"]) == 32
    assert len(msgspec.json.encode(shown)) < 1_000
