"""Links and arenas by themselves: two event loops in two processes, no gateway and no agent."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from din.bench.row import Effort, Row, figure, median, percentile
from din.domain.deployment import Epoch, Route
from din.domain.node import NodeId
from din.domain.tensor import TensorMeta
from din.errors import Unavailable
from din.transport.dial import dial
from din.transport.link import Link
from din.transport.server import LinkServer
from din.wire.messages import AnyMessage, Run

LIMITS_US: Final = {4 * 1024: 60, 600 * 1024: 350}
ECHO_ID, CALLER_ID = "echo", "caller"
START_S_MAX: Final = 20.0
ANSWER_S_MAX: Final = 20.0


def links(effort: Effort) -> Iterator[Row]:
    """Half a round trip of one frame with a body, which comes back as it went."""
    with (
        tempfile.TemporaryDirectory(prefix="din-bench-") as folder,
        _echo(Path(folder) / "link.sock") as addresses,
    ):
        yield from asyncio.run(_measure_links(addresses, effort))


async def _measure_links(addresses: Sequence[str], effort: Effort) -> list[Row]:
    caller = Peer()
    opened = [await _dial(address, caller) for address in addresses]
    rows: list[Row] = []
    try:
        for nbytes, limit_us in LIMITS_US.items():
            count = effort.repeats if nbytes < 100_000 else max(2, effort.repeats // 3)
            times: list[list[float]] = [[] for _ in opened]
            for _ in range(effort.rounds):
                for link, seen in zip(opened, times, strict=True):
                    seen.extend(await round_trips(caller, link, nbytes, count))
            for address, seen in zip(addresses, times, strict=True):
                kind = address.partition(":")[0]
                how = (
                    f"p50 of half the round trip, {len(seen)} trips of an echo, tcp and unix "
                    f"interleaved in {effort.rounds} rounds, p99 {percentile(seen, 0.99) / 2:.0f}"
                )
                rows.append(
                    figure(f"link, {kind}, {nbytes // 1024} KB", median(seen) / 2, "us", how,
                           at_most=limit_us)
                )  # fmt: skip
    finally:
        for link in opened:
            link.close("measured")
            await link.wait_ended()
        await asyncio.sleep(0)
    return rows


async def _dial(address: str, handler: Peer) -> Link:
    return await dial(
        [address],
        own_id=f"{CALLER_ID}-{address.partition(':')[0]}",
        session=1,
        target_id=ECHO_ID,
        handler=handler,
        timeout_ms=5000,
    )


async def round_trips(caller: Peer, link: Link, nbytes: int, count: int) -> list[float]:
    """Microseconds of each of `count` trips to an echo and back, after some that do not count."""
    message, body = _frame(nbytes), memoryview(bytearray(nbytes))
    times_us: list[float] = []
    async with asyncio.timeout(ANSWER_S_MAX):
        for number in range(count + count // 10):
            caller.answered = asyncio.get_running_loop().create_future()
            started = perf_counter_ns()
            if not link.send(message, [body]):
                raise Unavailable("the echo does not take frames")
            await caller.answered
            if number >= count // 10:
                times_us.append((perf_counter_ns() - started) / 1000)
    return times_us


def _frame(nbytes: int) -> Run:
    tensors = (TensorMeta("x", "UINT8", (nbytes,), nbytes),)
    route = Route(Epoch(1, 1), False, (NodeId("node-a"),))
    return Run(1, 0, 0, route, 1000, tensors, ECHO_ID)


class Peer:
    """Both ends: receives into one buffer, as slots are reused; the echo sends it back."""

    def __init__(self, *, is_echo: bool = False) -> None:
        self._buffer = memoryview(bytearray(max(LIMITS_US)))
        self._is_echo = is_echo
        self.answered: asyncio.Future[None] | None = None

    def on_open(self, link: Link) -> None:
        """Nothing to do."""

    def on_closed(self, link: Link, reason: str, is_orderly: bool) -> None:
        """A caller that waits must hear of it."""
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(Unavailable(f"the link ended: {reason}"))

    def place_body(self, link: Link, message: AnyMessage, nbytes: int) -> memoryview | None:
        """The one buffer."""
        return self._buffer[:nbytes] if nbytes <= len(self._buffer) else None

    def on_message(
        self, link: Link, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        """Send it back, or wake the caller."""
        if self._is_echo:
            link.send(message, [] if body is None else [body])
        elif self.answered is not None and not self.answered.done():
            self.answered.set_result(None)

    def on_body_abandoned(self, link: Link, message: AnyMessage, view: memoryview) -> None:
        """The buffer is free again by itself."""


@contextmanager
def _echo(path: Path) -> Generator[tuple[str, str]]:
    """A process that echoes frames, by its two addresses."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "din.bench.links", str(path), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        try:
            ours.settimeout(START_S_MAX)
            port = ours.recv(16).decode()
            if not port:
                raise Unavailable("the process that echoes frames did not start")
            yield f"tcp:127.0.0.1:{port}", f"unix:{path}"
        finally:
            ours.close()
            process.wait(START_S_MAX)


async def serve_echo(path: str, ready_fd: int) -> None:
    """Listen, tell the port, and echo until whoever started us has gone."""
    server = LinkServer(ECHO_ID, 1, Peer(is_echo=True))
    server.listen_unix(path)
    port = server.listen_tcp("127.0.0.1", 0)
    with socket.socket(fileno=ready_fd) as ready:
        ready.sendall(str(port).encode())
        ready.setblocking(False)
        await asyncio.get_running_loop().sock_recv(ready, 1)
    server.close()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve_echo(sys.argv[1], int(sys.argv[2])))
