"""Who is told which address of whom."""

from __future__ import annotations

import pytest

from din.gateway.dialable import dialable

SOCKET, HERE, HERE6, THERE = (
    "unix:/run/din/node.sock",
    "tcp:127.0.0.1:8080",
    "tcp:[::1]:8080",
    "tcp:10.0.0.7:8080",
)
ALL = (SOCKET, HERE, HERE6, THERE)


@pytest.mark.parametrize(
    ("is_same_machine", "is_same_kind", "told"),
    [
        (True, True, ALL),
        (False, True, (THERE,)),
        (True, False, (SOCKET,)),
        (False, False, ()),
    ],
)
def test_only_addresses_at_which_it_can_be_met_are_told(
    told: tuple[str, ...], *, is_same_machine: bool, is_same_kind: bool
) -> None:
    assert dialable(ALL, is_same_machine=is_same_machine, is_same_kind=is_same_kind) == told


@pytest.mark.parametrize(
    "host",
    [
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
        "localhost",
        "LocalHost.",
        "a.localhost",
        "ip6-localhost",
    ],
)
def test_no_spelling_leads_a_reader_to_its_own_machine(host: str) -> None:
    address = f"tcp:{host}:8080"
    assert dialable((address,), is_same_machine=False, is_same_kind=True) == ()
    assert dialable((address,), is_same_machine=True, is_same_kind=True) == (address,)


@pytest.mark.parametrize("host", ["10.0.0.7", "169.254.7.7", "[2001:db8::7]", "edge-7.plant", "é"])
def test_addresses_and_names_of_others_are_told(host: str) -> None:
    address = f"tcp:{host}:8080"
    assert dialable((address,), is_same_machine=False, is_same_kind=True) == (address,)
