"""Which of a node's addresses another node is told: those at which it can be met.

Addresses are what a node says of itself. One that would lead its reader to the reader's own machine
is not passed on, in whichever way it is written.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple


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


class Reach(NamedTuple):
    """Where a node is, and from where it can be dialled: as `dialable`, for very many pairs."""

    machine: str | None
    is_joined: bool
    here: bool
    """From its own machine."""
    elsewhere: bool
    by_socket: bool

    def answers(self, dialler: Reach) -> bool:
        """Whether that node can dial this one."""
        is_same_machine = self.machine is not None and self.machine == dialler.machine
        if self.is_joined != dialler.is_joined:
            return is_same_machine and self.by_socket
        return self.here if is_same_machine else self.elsewhere


def reach_of(addresses: tuple[str, ...], machine: str | None, *, is_joined: bool) -> Reach:
    """Of a node with these addresses; `is_joined` = it has a certificate."""
    return Reach(
        machine,
        is_joined,
        here=bool(addresses),
        elsewhere=any(map(_leads_elsewhere, addresses)),
        by_socket=any(each.startswith("unix:") for each in addresses),
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
