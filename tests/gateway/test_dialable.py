"""Who is told which address of whom."""

from __future__ import annotations

import pytest

from din.gateway.nodes.dialable import dialable, reach_of

SOCKET, HERE, HERE6, THERE = (
    "unix:/run/din/node.sock",
    "tcp:127.0.0.1:8080",
    "tcp:[::1]:8080",
    "tcp:10.0.0.7:8080",
)
ALL = (SOCKET, HERE, HERE6, THERE)


@pytest.mark.parametrize(
    ("machine", "is_same_kind", "told"),
    [
        ("here", True, ALL),
        ("here", False, (SOCKET,)),
        ("one address", True, (SOCKET, THERE)),
        ("one address", False, (SOCKET,)),
        ("elsewhere", True, (THERE,)),
        ("elsewhere", False, ()),
    ],
)
def test_only_addresses_at_which_it_can_be_met_are_told(
    machine: str, told: tuple[str, ...], *, is_same_kind: bool
) -> None:
    given = dialable(
        ALL,
        is_same_machine=machine != "elsewhere",
        is_here=machine == "here",
        is_same_kind=is_same_kind,
    )
    assert given == told
    machines = {"here": ("", ""), "one address": ("10.0.0.9",) * 2, "elsewhere": ("", "10.0.0.9")}
    one, other = (
        reach_of(ALL, place, is_joined=is_joined)
        for place, is_joined in zip(machines[machine], (True, is_same_kind), strict=True)
    )
    assert one.answers(other) is other.answers(one) is bool(told)


def told_by(host: str, *, is_here: bool = False, is_same_machine: bool = False) -> bool:
    address = f"tcp:{host}:8080"
    given = dialable(
        (address,), is_same_machine=is_same_machine, is_here=is_here, is_same_kind=True
    )
    assert given in ((), (address,))
    return bool(given)


NUMBERS = [
    "127.8.8.8",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "0.0.0.0",
    "0",
    "[::]",
    "[::1%1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:0.0.0.0]",
    "[fe80::1]",
    "[fe80::1%lo]",
    "224.0.0.1",
    "[ff02::1]",
]


@pytest.mark.parametrize("host", NUMBERS)
def test_no_spelling_leads_a_reader_to_its_own_machine(host: str) -> None:
    assert not told_by(host)
    # Behind one address may be two machines, and each has a loopback of its own.
    assert not told_by(host, is_same_machine=True)
    assert told_by(host, is_same_machine=True, is_here=True)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost.", "a.localhost", "ip6-localhost", "edge-7.plant", "é", "a..b"],
)
def test_a_name_is_told_to_nobody_since_its_owner_may_say_that_it_is_anybody(host: str) -> None:
    assert not told_by(host)
    assert not told_by(host, is_same_machine=True, is_here=True)


@pytest.mark.parametrize("host", ["10.0.0.7", "169.254.7.7", "[2001:db8::7]"])
def test_addresses_of_others_are_told(host: str) -> None:
    assert told_by(host)
    assert told_by(host, is_same_machine=True)
