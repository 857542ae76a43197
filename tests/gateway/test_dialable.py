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
