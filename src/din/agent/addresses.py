"""Under which addresses this node is dialled, kept true while they change.

The kernel's news make it look again once they have settled; without them, and in case some are
lost, it looks now and then.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from din.agent.profile import LOOPBACK
from din.config import NodeConfig
from din.system.network import AddressWatch, bound_addresses, open_address_news, read_news
from din.wire.registration import ADDRESS_COUNT_MAX

SETTLE_S: Final = 0.05
"""A new lease takes the old address away and gives the new one in several steps: one look for all
of them, and at most twenty looks a second however much happens."""
LOOK_S: Final = 2.0
"""Without news. With the time that a beat takes, within two heartbeats."""
LOOK_WITH_NEWS_S: Final = 30.0

Report = Callable[..., None]


class OwnAddresses:
    """The addresses that this node registers. All calls in the loop's thread."""

    def __init__(
        self,
        host: str,
        on_change: Callable[[frozenset[str]], None],
        report: Report,
        *,
        open_news: Callable[[], socket.socket] = open_address_news,
        watch: Callable[[], AddressWatch] = AddressWatch,
    ) -> None:
        """`on_change` gets the hosts that this machine had and has no more."""
        self._host = host
        self._on_change = on_change
        self._report = report
        self._open_news = open_news
        self._make_watch = watch
        self._loop = asyncio.get_running_loop()
        self._news: socket.socket | None = None
        self._watch: AddressWatch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_settling = False
        self._socket_path = ""
        self._port = 0
        self._bound_host = ""
        self.current: tuple[str, ...] = ()
        """As they are registered: the Unix socket first, the most useful ones up to the limit."""

    def start(self, socket_path: str, port: int, bound_host: str) -> None:
        """Look, and watch from now on; a node that only this host dials has nothing to watch. What
        the listener is bound to is told, and no name: whose names others look up makes them ask
        servers of his choice."""
        self._socket_path, self._port, self._bound_host = socket_path, port, bound_host
        if self._host not in LOOPBACK:
            self._subscribe()
            self._watch = self._make_watch()  # after it: what changes in between is not missed
            self._look_later()
        self._note()

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._unsubscribe()

    def _subscribe(self) -> None:
        try:
            self._news = self._open_news()
        except OSError as error:
            self._report("address_news_refused", reason=str(error), look_every_s=LOOK_S)
            return
        self._loop.add_reader(self._news, self._on_news, self._news)

    def _unsubscribe(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            self._loop.remove_reader(news)
            news.close()

    def _on_news(self, news: socket.socket) -> None:
        try:
            read_news(news)
        except OSError as error:
            self._unsubscribe()
            self._report("address_news_ended", reason=str(error), look_every_s=LOOK_S)
        if not self._is_settling:
            self._is_settling = True
            self._look_later(SETTLE_S)

    def _look_later(self, delay_s: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if delay_s is None:
            delay_s = LOOK_S if self._news is None else LOOK_WITH_NEWS_S
        self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        assert self._watch is not None, "looked at only while it is watched"
        self._is_settling = False
        self._look_later()
        before = self._watch.here
        is_other = self._watch.look()
        gone = before - self._watch.here
        if is_other:
            self._note()
        if is_other or gone:
            self._report("addresses_changed", addresses=self.current, gone=sorted(gone))
            self._on_change(gone)

    def _note(self) -> None:
        interfaces = self._watch.current if self._watch is not None else ()
        hosts = dict.fromkeys(bound_addresses(self._bound_host, interfaces))
        shown = (f"[{each}]" if ":" in each else each for each in hosts)
        tcp = (f"tcp:{each}:{self._port}" for each in shown)
        self.current = (f"unix:{self._socket_path}", *tcp)[:ADDRESS_COUNT_MAX]


def interface_patterns(config: NodeConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Patterns of interfaces that are allowed, and of those that are denied."""
    return config.interfaces_allowed, config.interfaces_denied
