"""Keys and tokens typed in a wrong place: the error says what is wrong, not the secret."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run

SECRET = "S3cr3t" * 7 + "S"
KEY = f"din_0123abcd.{SECRET}"
TOKEN = f"DIN1.{'ab' * 32}.01234567.{SECRET[:22]}"


@pytest.mark.parametrize(
    "words",
    [
        (KEY,),
        ("node", TOKEN),
        ("node", "join", TOKEN, TOKEN),
        ("node", "list", TOKEN),
        ("node", "list", "--gateway", f"https://user:{KEY}@127.0.0.1:1"),
        ("node", "list", "--gateway", KEY),
        ("config", "explain", KEY),
        ("audit", "list", "--since", KEY),
        ("key", "create", "line-4", "--scope", KEY),
        (f"--{KEY}",),
    ],
)
def test_an_error_does_not_repeat_a_secret(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.exit_code
    assert "S3cr3t" not in done.output
    assert "[hidden]" in done.output
