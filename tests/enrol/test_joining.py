"""The child that joins and renews: its orders, and which of several gateways' answers is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from din.domain.enrolment import Membership
from din.enrol.joining import join, renew
from din.errors import Denied, DinError, Unavailable, Unreachable, UsageError
from din.system.clock import wall_clock_ms
from din.transport.membership import EnrolAnswer, EnrolOrder
from din.wire.join_token import JoinToken

SECRET = "s3cret_-AAAAAAAAAAAAAA"
TOKEN = JoinToken("5f" * 32, "434d5aaa", SECRET).text
NOWHERE = "https://127.0.0.1:1"
MEMBER = Membership(
    cluster="plant", node_id="ab" * 8, gateways=(), signing_key="", begins_ms=1, ends_ms=2
)


def order(folder: Path, *gateways: str, token: str = TOKEN) -> EnrolOrder:
    return EnrolOrder(
        folder=str(folder / "trust"), gateways=gateways, token=token, node_id="ab" * 8
    )


@pytest.mark.parametrize(
    ("words", "said", "told"),
    [
        ((), b"{}", "say join or renew"),
        (("leave",), b"{}", "say join or renew"),
        (("join",), b"", "not understood"),
        (("join",), b'{"folder": "/x", "token": "' + TOKEN.encode(), "not understood"),
        (("join",), b'{"folder": 5, "gateways": []}', "not understood"),
        (("renew",), b"\xff" * 20_000, "not understood"),
    ],
)
def test_an_order_that_is_none_is_answered_with_an_error_and_not_repeated(
    words: tuple[str, ...], said: bytes, told: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "din.enrol", *words],
        input=said,
        capture_output=True,
        timeout=120,
        check=False,
    )
    answer = msgspec.json.decode(done.stdout, type=EnrolAnswer)
    assert (done.returncode, answer.code, done.stderr) == (2, "DIN-100", b"")
    assert told in answer.message
    assert SECRET.encode() not in done.stdout


def test_without_a_gateway_nothing_is_tried_and_without_one_that_answers_all_are_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(Unreachable, match="no gateway was named"):
        join(order(tmp_path), wall_clock_ms)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: .*; .*127\.0\.0\.1:2: "):
        join(order(tmp_path, NOWHERE, "https://127.0.0.1:2"), wall_clock_ms)


def test_the_key_outlives_a_join_that_failed_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "trust" / "node.key"
    for _ in range(2):
        with pytest.raises(Unreachable):
            join(order(tmp_path, NOWHERE), wall_clock_ms)
        assert path.stat().st_mode & 0o777 == 0o600
    key = path.read_bytes()
    with pytest.raises(Unreachable):
        join(order(tmp_path, NOWHERE), wall_clock_ms)
    assert path.read_bytes() == key
    assert [each.name for each in path.parent.iterdir()] == ["node.key"]


def test_a_token_that_is_none_makes_no_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        join(order(tmp_path, NOWHERE, token="DIN1.x"), wall_clock_ms)
    assert list(tmp_path.iterdir()) == []


def test_who_has_not_joined_renews_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="has not joined a cluster"):
        renew(order(tmp_path, NOWHERE, token=""), wall_clock_ms)


def answers(*outcomes: DinError | Membership) -> Callable[..., Membership]:
    left = list(outcomes)

    def answer(*_: object) -> Membership:
        outcome = left.pop(0)
        if isinstance(outcome, DinError):
            raise outcome
        return outcome

    return answer


def test_the_first_gateway_by_which_it_works_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, refusal = Unreachable("a: no answer"), Denied("b: no")
    monkeypatch.setattr("din.enrol.joining._join_at", answers(silent, refusal, MEMBER))
    assert join(order(tmp_path, "a", "b", "c", "d"), wall_clock_ms) == MEMBER


def test_a_refusal_weighs_more_than_silence_and_all_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = (Unreachable("a: no answer"), Denied("b: no", hint="why"), Unreachable("c: none"))
    monkeypatch.setattr("din.enrol.joining._join_at", answers(*outcomes))
    with pytest.raises(Denied) as told:
        join(order(tmp_path, "a", "b", "c"), wall_clock_ms)
    assert told.value.message == "a: no answer; b: no; c: none"
    assert told.value.hint == "why"
