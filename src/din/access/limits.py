"""How often a key may ask, how often an address may show a wrong one, and who makes room for others
while nobody knows yet who they are. Time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Final, Generic, TypeVar

FAILURES_MAX: Final = 10
"""Wrong keys that one address may show in a window before it is told to wait."""
WINDOW_MS: Final = 60_000
ADDRESSES_MAX: Final = 4_096
"""Addresses watched at once; the one that failed longest ago is forgotten."""
Comer = TypeVar("Comer")
_NETWORK_MASK: Final = (1 << 128) - (1 << 64)


class TokenBucket:
    """`burst` requests at once, then `requests_per_s`."""

    __slots__ = ("_burst", "_filled_ms", "_per_ms", "_tokens")

    def __init__(self, requests_per_s: float, burst: int | None, now_ms: float) -> None:
        self._per_ms = requests_per_s / 1000
        self._burst = float(burst if burst is not None else max(1, ceil(requests_per_s)))
        self._tokens = self._burst
        self._filled_ms = now_ms

    def take(self, now_ms: float) -> float:
        """0 = one request may go; else the milliseconds to wait for the next."""
        tokens = self._tokens
        if now_ms > self._filled_ms:
            tokens += (now_ms - self._filled_ms) * self._per_ms
            self._filled_ms = now_ms
            tokens = min(tokens, self._burst)
        if tokens >= 1:
            self._tokens = tokens - 1
            return 0.0
        self._tokens = tokens
        return (1 - tokens) / self._per_ms


class FailureLimiter:
    """Counts failures by address in windows that begin with the first one.

    An IPv6 client owns a /64, so that whole network is one address here.
    """

    def __init__(
        self,
        failures_max: int = FAILURES_MAX,
        window_ms: int = WINDOW_MS,
        addresses_max: int = ADDRESSES_MAX,
    ) -> None:
        self._failures_max = failures_max
        self._window_ms = window_ms
        self._addresses_max = addresses_max
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Network -> begin of its window and failures in it."""

    def fail(self, address: str, now_ms: float) -> float:
        """Note one failure. 0 = an ordinary one; else the milliseconds to wait."""
        network = network_of(address)
        began_ms, count = self._windows.pop(network, (now_ms, 0))
        if now_ms >= began_ms + self._window_ms:
            began_ms, count = now_ms, 0
        # Counting further would change nothing but the size of the number.
        count = min(count + 1, self._failures_max + 1)
        self._windows[network] = (began_ms, count)
        if len(self._windows) > self._addresses_max:
            self._windows.popitem(last=False)
        return began_ms + self._window_ms - now_ms if count > self._failures_max else 0.0


class WaitingRoom(Generic[Comer]):
    """A bounded number of comers who have not proved yet who they are.

    When it is full, whoever is there longest of the network that takes the most places goes: one
    that fills the room, with open ends or slow ones, pushes out its own, and an honest comer of
    another, or quicker than the rest of its own, is through before its turn to go comes.
    """

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._by_network: dict[str, dict[Comer, None]] = {}
        self._network: dict[Comer, str] = {}

    def __len__(self) -> int:
        return len(self._network)

    def __contains__(self, comer: Comer) -> bool:
        return comer in self._network

    def __iter__(self) -> Iterator[Comer]:
        return iter(self._network)

    def enter(self, comer: Comer, address: str) -> Comer | None:
        """Let somebody in; answers who has to go for it, who has left the room."""
        gone = None
        if len(self._network) >= self._places_max:
            gone = next(iter(max(self._by_network.values(), key=len)))
            self.leave(gone)
        network = network_of(address)
        self._network[comer] = network
        self._by_network.setdefault(network, {})[comer] = None
        return gone

    def leave(self, comer: Comer) -> None:
        """It has gone, or proved who it is. Repeating it is harmless."""
        network = self._network.pop(comer, None)
        if network is None:
            return
        others = self._by_network[network]
        del others[comer]
        if not others:
            del self._by_network[network]


def network_of(address: str) -> str:
    """What counts as one address: itself, or the /64 of an IPv6 address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) & _NETWORK_MASK)}/64"
