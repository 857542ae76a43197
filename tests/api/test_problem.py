"""Errors as each API wants them."""

import json

import pytest

from din.api.problem import Flavour, problem_body
from din.errors import DeadlineExceeded


@pytest.mark.parametrize(
    ("flavour", "hint", "told"),
    [
        ("infer", "", "give it more time: timeout_ms"),
        ("infer", "ask at night", "ask at night"),
        ("oip", "", "give it more time: timeout_ms"),
        ("api", "", ""),
    ],
)
def test_whose_time_was_too_short_is_told_how_to_give_more(
    flavour: Flavour, hint: str, told: str
) -> None:
    body = json.loads(problem_body(flavour, DeadlineExceeded("too late", hint=hint), "req-1"))
    facts = body["din"] if flavour == "oip" else body["error"]
    assert facts["message"] == "too late"
    assert facts["hint"].startswith(told)
    assert bool(facts["hint"]) == bool(told)
