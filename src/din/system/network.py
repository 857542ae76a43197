"""Own addresses that other machines can dial: no bridges of containers, no dead interfaces.

The kernel tells of changes within milliseconds (`open_address_news`). Its word is only a hint to
look again: it is lost when too much happens at once, and refused in some sandboxes.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Final

import psutil
from msgspec import Struct

DENIED_INTERFACES: Final = (
    "lo", "docker*", "br-*", "veth*", "virbr*", "vnet*", "tailscale*", "zt*", "cni*", "flannel*",
    "cali*", "cilium*", "lxc*", "lxdbr*", "podman*", "vmnet*", "vboxnet*", "ifb*", "dummy*",
    "kube-*", "nerdctl*", "tunl*", "sit*", "gre*", "ip6tnl*",
)  # fmt: skip
"""Patterns of interfaces whose addresses other machines cannot dial, or not for long."""
ADDRESSES_MAX: Final = 8
NEWS_GROUPS: Final = 0x1 | 0x10 | 0x100
"""RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of rtnetlink(7)."""
NEWS_BYTES: Final = 64
"""Nobody reads what is said; the kernel cuts the rest of each message off."""
NEWS_READ_MAX: Final = 256
"""Messages taken in one turn; more make the socket readable again."""


class Interface(Struct, frozen=True, order=True):
    """One dialable address."""

    name: str
    address: str


class RawInterface(Struct, frozen=True):
    """What the system says of one interface."""

    is_up: bool
    addresses: tuple[str, ...]


InterfaceSource = Callable[[], Mapping[str, RawInterface]]


def system_interfaces() -> dict[str, RawInterface]:
    """All interfaces of this machine. Raises OSError when the kernel does not answer."""
    stats = psutil.net_if_stats()
    return {
        name: RawInterface(
            is_up=name in stats and stats[name].isup,
            addresses=tuple(
                each.address.partition("%")[0]
                for each in addresses
                if each.family in (socket.AF_INET, socket.AF_INET6)
            ),
        )
        for name, addresses in psutil.net_if_addrs().items()
    }


def reachable(
    interfaces: Mapping[str, RawInterface],
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
) -> tuple[Interface, ...]:
    """Addresses worth announcing, IPv4 first. `allow` and `deny` hold patterns of interface names:
    what is denied is never taken; what is allowed, nothing else; by default, all but those whose
    addresses others can hardly dial."""
    found: list[Interface] = []
    for name, raw in interfaces.items():
        is_allowed = _matches(name, allow)
        is_wanted = is_allowed if allow else not _matches(name, DENIED_INTERFACES)
        if raw.is_up and is_wanted and not _matches(name, deny):
            found.extend(
                Interface(name, text)
                for text in raw.addresses
                if _is_dialable(text, is_loopback_wanted=is_allowed)
            )
    found.sort(key=lambda each: (":" in each.address, each.name, each.address))
    return tuple(found[:ADDRESSES_MAX])


class AddressWatch:
    """Notices that addresses changed. A failed look keeps the last addresses and is counted."""

    def __init__(
        self,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        source: InterfaceSource = system_interfaces,
    ) -> None:
        self._allow = tuple(allow)
        self._deny = tuple(deny)
        self._source = source
        self.failures = 0
        self.current: tuple[Interface, ...] = ()
        self.here: frozenset[str] = frozenset()
        """Every address of this machine, also those that others cannot dial."""
        self.look()

    def look(self) -> bool:
        """Look again; True = the addresses differ from those before."""
        try:
            interfaces = self._source()
        except OSError:
            self.failures += 1
            return False
        self.here = frozenset(text for each in interfaces.values() for text in each.addresses)
        before, self.current = self.current, reachable(interfaces, self._allow, self._deny)
        return before != self.current


def open_address_news() -> socket.socket:
    """A socket that becomes readable when an interface or an address changes. Raises OSError where
    the kernel or a sandbox refuses it."""
    news = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
    )
    try:
        news.bind((0, NEWS_GROUPS))
    except OSError:
        news.close()
        raise
    return news


def read_news(news: socket.socket) -> None:
    """Empty the socket. Raises OSError when it is of no more use."""
    for _ in range(NEWS_READ_MAX):
        try:
            news.recv(NEWS_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # some was lost: that is news as well
                raise


def bound_addresses(host: str, interfaces: Sequence[Interface]) -> tuple[str, ...]:
    """The IPv4 addresses under which a server bound to `host` answers."""
    if host in ("", "0.0.0.0", "::"):
        found = tuple(each.address for each in interfaces if ":" not in each.address)
        return (*found, "127.0.0.1")
    return ("127.0.0.1",) if host == "localhost" else (host,)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


def _is_dialable(text: str, *, is_loopback_wanted: bool) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if address.is_loopback:
        return is_loopback_wanted
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)
