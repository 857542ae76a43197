"""Which of a node's addresses another node is told: those at which it can be met."""

from __future__ import annotations

from din.config import is_loopback


def dialable(
    addresses: tuple[str, ...], *, is_same_machine: bool, is_same_kind: bool
) -> tuple[str, ...]:
    """Of `unix:/path` and `tcp:host:port`. Sockets and loopback addresses lead nowhere, or to
    somebody else, from another machine; by TCP a node with a certificate speaks TLS only, and one
    without it plain text only. Empty = the gateway relays."""
    return tuple(
        each
        for each in addresses
        if (is_same_machine or not _is_of_one_machine(each))
        and (is_same_kind or each.startswith("unix:"))
    )


def _is_of_one_machine(address: str) -> bool:
    kind, _, place = address.partition(":")
    return kind == "unix" or is_loopback(place.rpartition(":")[0].strip("[]"))
