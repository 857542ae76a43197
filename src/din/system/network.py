"""Own addresses that other machines can dial: no bridges of containers, no dead interfaces."""

from __future__ import annotations

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
    deny: Sequence[str] = DENIED_INTERFACES,
) -> tuple[Interface, ...]:
    """Addresses worth announcing, IPv4 first. `allow` and `deny` hold patterns of interface names;
    what is allowed by name is taken even when it is denied by pattern."""
    found: list[Interface] = []
    for name, raw in interfaces.items():
        is_allowed = _matches(name, allow)
        is_wanted = is_allowed or (not allow and not _matches(name, deny))
        if raw.is_up and is_wanted:
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
        deny: Sequence[str] = DENIED_INTERFACES,
        source: InterfaceSource = system_interfaces,
    ) -> None:
        self._allow = tuple(allow)
        self._deny = tuple(deny)
        self._source = source
        self.failures = 0
        self.current: tuple[Interface, ...] = ()
        self.look()

    def look(self) -> bool:
        """Look again; True = the addresses differ from those before."""
        try:
            interfaces = self._source()
        except OSError:
            self.failures += 1
            return False
        before, self.current = self.current, reachable(interfaces, self._allow, self._deny)
        return before != self.current


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
