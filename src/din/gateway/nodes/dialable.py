"""Which of a node's addresses another node is told: those at which it can be met.

Addresses are what a node says of itself, and it may say what it likes. Whoever answers there must
show a certificate with that node's id, so naming another's address wins no frame; what is left is
to make others knock there. So that they knock neither at their own machine nor at a name server of
somebody's choice, which may answer with their own machine or never, addresses are passed on as
numbers only.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple


def dialable(
    addresses: tuple[str, ...], *, is_same_machine: bool, is_here: bool, is_same_kind: bool
) -> tuple[str, ...]:
    """Of `unix:/path` and `tcp:host:port`. From another machine sockets and loopback addresses lead
    nowhere, or to somebody else; by TCP a node with a certificate speaks TLS only, and one without
    it plain text only. `is_here`: both are on the gateway's own machine. Elsewhere two that come
    from one address may be two machines behind it, so there loopback is told to nobody. Empty = the
    gateway relays."""
    return tuple(
        each
        for each in addresses
        if (each.startswith("unix:") and is_same_machine)
        or (is_same_kind and _leads(each, is_here=is_here))
    )


class Reach(NamedTuple):
    """Where a node is, and from where it can be dialled: as `dialable`, for very many pairs."""

    machine: str | None
    """Empty = the gateway's own."""
    is_joined: bool
    here: bool
    """By TCP from the gateway's own machine."""
    elsewhere: bool
    """By TCP from any other."""
    by_socket: bool

    def answers(self, dialler: Reach) -> bool:
        """Whether that node can dial this one."""
        is_same_machine = self.machine is not None and self.machine == dialler.machine
        if is_same_machine and self.by_socket:
            return True
        is_here = is_same_machine and not self.machine
        return self.is_joined == dialler.is_joined and (self.here if is_here else self.elsewhere)


def reach_of(addresses: tuple[str, ...], machine: str | None, *, is_joined: bool) -> Reach:
    """Of a node with these addresses; `is_joined` = it has a certificate."""
    return Reach(
        machine,
        is_joined,
        here=any(_leads(each, is_here=True) for each in addresses),
        elsewhere=any(_leads(each, is_here=False) for each in addresses),
        by_socket=any(each.startswith("unix:") for each in addresses),
    )


def _leads(address: str, *, is_here: bool) -> bool:
    kind, _, place = address.partition(":")
    found = _number(place.rpartition(":")[0].removeprefix("[").removesuffix("]"))
    if kind != "tcp" or found is None:
        return False
    if is_here:
        return True
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
