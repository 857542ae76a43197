"""Which of a node's addresses another node is told: those at which it can be met.

Addresses are what a node says of itself. One that would lead its reader to the reader's own machine
is not passed on, in whichever way it is written.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address


def dialable(
    addresses: tuple[str, ...], *, is_same_machine: bool, is_same_kind: bool
) -> tuple[str, ...]:
    """Of `unix:/path` and `tcp:host:port`. Sockets and loopback addresses lead nowhere, or to
    somebody else, from another machine; by TCP a node with a certificate speaks TLS only, and one
    without it plain text only. Empty = the gateway relays."""
    return tuple(
        each
        for each in addresses
        if (is_same_machine or _leads_elsewhere(each))
        and (is_same_kind or each.startswith("unix:"))
    )


def _leads_elsewhere(address: str) -> bool:
    kind, _, place = address.partition(":")
    host = place.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if kind != "tcp":
        return False
    found = _number(host)
    if found is None:
        return "localhost" not in host.lower()
    # A link-local address of IPv6 means another machine on each interface of the reader.
    is_of_one_link = isinstance(found, IPv6Address) and found.is_link_local
    return not (found.is_loopback or found.is_unspecified or found.is_multicast or is_of_one_link)


def _number(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a resolver makes of it without asking anybody; None for a name."""
    try:
        found = ip_address(host)
    except ValueError:
        try:
            return IPv4Address(socket.inet_aton(host))  # 127.1, 2130706433, 0x7f.1
        except (OSError, ValueError):
            return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
