"""The agent's side of `python -m din.runner`: one child per server that this node starts itself.

Imported only where there is such a server.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from din.agent.child import end_child, start_child
from din.agent.foreign_settings import address_of
from din.config import NodeConfig
from din.config_forms import ForeignSetting
from din.domain.malformed import MALFORMED
from din.errors import DinError, Internal, Unavailable
from din.flow.backoff import Backoff
from din.system.descriptors import close_all, receive_message, send_message
from din.wire.runner import MESSAGE_BYTES_MAX, Keep, Standing, Told

END_S_MAX: Final = 20.0
"""The child waits for the server and for the runtime."""
BACKOFF: Final = Backoff(base_ms=1000, cap_ms=60_000)
MESSAGES_MAX: Final = 32
"""Taken of one child at once."""

_DECODER: Final[msgspec.json.Decoder[Told]] = msgspec.json.Decoder(Told)

Report = Callable[..., None]


class _Container:
    """One server and the child that keeps it."""

    def __init__(self, order: Keep, url: str) -> None:
        self.order = order
        self.url = url
        self.standing = Standing(state="preparing", runtime=order.runner)
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.failures = 0
        self.again: asyncio.TimerHandle | None = None


class Containers:
    """All of this node. All calls in the loop's thread."""

    def __init__(self, orders: Sequence[tuple[str, Keep]], report: Report, random: Random) -> None:
        """`orders`: URL -> what is to run there."""
        self._all = {url: _Container(order, url) for url, order in orders}
        self._report = report
        self._random = random
        self._ending: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def start(self) -> None:
        """Begin with all of them; repeating it is harmless."""
        for each in self._all.values():
            if each.process is None and each.again is None:
                self._start(each)

    def trouble_of(self, url: str) -> str:
        """Why the server at a URL cannot answer yet; empty when it runs, or is not ours."""
        found = self._all.get(url)
        if found is None or found.standing.state == "running":
            return ""
        if found.standing.state == "preparing":
            return "its container is being prepared"
        return f"its container does not run: {found.standing.reason}"

    def words_of(self, url: str) -> str:
        """What people are told of its container; empty when it has none of ours."""
        found = self._all.get(url)
        if found is None:
            return ""
        standing = found.standing
        words = f"{standing.runtime or found.order.runner}, {found.order.container_id}"
        words += f", pid {standing.pid}" if standing.pid else ""
        return f"{words}, started again {standing.restarts} times" if standing.restarts else words

    async def stop(self) -> None:
        """Stop every server and wait for it."""
        self._is_stopping = True
        for each in self._all.values():
            if each.again is not None:
                each.again.cancel()
            self._end(each)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _start(self, container: _Container) -> None:
        container.again = None
        try:
            container.process, control = start_child("din.runner")
            container.control = control
            send_message(control, msgspec.json.encode(container.order))
        except (DinError, OSError) as error:
            self._lost(container, f"din.runner cannot be started: {error!s:.200}")
            return
        asyncio.get_running_loop().add_reader(control.fileno(), self._on_readable, container)

    def _on_readable(self, container: _Container) -> None:
        for _ in range(MESSAGES_MAX):
            if container.control is None:
                return
            try:
                data, descriptors = receive_message(container.control, MESSAGE_BYTES_MAX)
                close_all(descriptors)
                told = _DECODER.decode(data) if data else None
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, Internal, *MALFORMED):
                told = None
            if told is None:
                self._lost(container, "din.runner ended; what it said is in the node's own log")
                return
            self._take(container, told)

    def _take(self, container: _Container, told: Told) -> None:
        if isinstance(told, Standing):
            container.standing = told
            if told.state == "running":
                container.failures = 0
            facts = {"reason": told.reason} if told.reason else {"pid": told.pid or None}
            self._report(f"container_{told.state}", url=container.url, **facts)
            return
        if told.dropped:
            self._report("container_log_dropped", url=container.url, lines=told.dropped)
        for line in told.lines:
            self._report("container_log", url=container.url, line=line)

    def _lost(self, container: _Container, reason: str) -> None:
        """The next child removes what is left of the container."""
        self._end(container)
        if self._is_stopping:
            return
        delay_s = BACKOFF.delay_ms(container.failures, self._random) / 1000
        container.failures += 1
        told = f"{reason}; tried again in {delay_s:.0f} s"
        restarts = container.standing.restarts
        self._take(container, Standing(state="failed", reason=told, restarts=restarts))
        loop = asyncio.get_running_loop()
        container.again = loop.call_later(delay_s, self._start, container)

    def _end(self, container: _Container) -> None:
        if container.control is None or container.process is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(container.control.fileno())
        container.control.close()
        ending = loop.create_task(end_child(container.process, END_S_MAX))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        container.control = container.process = None


def containers_of(
    settings: Sequence[ForeignSetting], config: NodeConfig, report: Report, random: Random
) -> Containers:
    """Of the servers that the node is to start. Raises Unavailable without a runner."""
    orders: list[tuple[str, Keep]] = []
    for each in settings:
        if each.container is None:
            continue
        if not config.runner:
            raise Unavailable(
                f"foreign server {each.url} has a container, and no runner is to start it",
                hint="din node start --runner crun (or runc)",
            )
        state_dir, address = Path(config.state_dir).resolve(), address_of(each.url)
        digest = hashlib.sha256(f"{state_dir} {address.host} {address.port}".encode())
        container_id = f"din-{digest.hexdigest()[:16]}"
        keep = Keep(
            runner=config.runner,
            container_id=container_id,
            folder=str(state_dir / "containers" / container_id),
            host="127.0.0.1" if address.host == "localhost" else address.host,
            port=address.port,
            setting=each.container,
            devices=config.runner_device,
        )
        orders.append((each.url, keep))
    return Containers(orders, report, random)
