"""What encryption costs a link: TLS against plain TCP in the same two processes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import psutil

from din.bench.links import ANSWER_S_MAX, LIMITS_US, START_S_MAX, Peer, round_trips
from din.bench.row import Effort, Row, figure, median
from din.domain.trust import PeerName
from din.errors import Unavailable
from din.system.identity import write_atomically
from din.transport.dial import dial, ignore_reports
from din.transport.link import Link
from din.transport.server import LinkServer
from din.transport.tls import TlsFiles, files_in
from din.transport.tls_identity import TlsIdentity

CLUSTER: Final = "bench"
ECHO: Final = PeerName(CLUSTER, "gateway", "00000000000000ec")
CALLER: Final = PeerName(CLUSTER, "node", "00000000000000ca")
HANDSHAKES: Final = 40


def encrypted_links(effort: Effort) -> Iterator[Row]:
    """Half a round trip and processor time of one frame, encrypted and plain in turn."""
    with (
        tempfile.TemporaryDirectory(prefix="din-bench-") as folder,
        _echo(Path(folder)) as (process, plain, encrypted),
    ):
        identity = TlsIdentity(files_in(Path(folder), "node"), CLUSTER, ignore_reports)
        yield from asyncio.run(_measure(process, plain, encrypted, identity, effort))


async def _measure(
    process: psutil.Process, plain: str, encrypted: str, identity: TlsIdentity, effort: Effort
) -> list[Row]:
    caller = Peer()
    links = [await _dial(plain, caller, None), await _dial(encrypted, caller, identity)]
    try:
        rows = [
            row
            for nbytes in LIMITS_US
            for row in await _compare(process, caller, links, nbytes, effort)
        ]
    finally:
        for link in links:
            link.close("measured")
            await link.wait_ended()
    return [*rows, *await _handshakes(caller, plain, encrypted, identity)]


async def _compare(
    process: psutil.Process, caller: Peer, links: list[Link], nbytes: int, effort: Effort
) -> list[Row]:
    count = effort.repeats if nbytes < 100_000 else max(2, effort.repeats // 3)
    trips_us: list[list[float]] = [[], []]
    cpu_us: list[list[float]] = [[], []]
    for _ in range(effort.rounds):
        for link, trips, cpu in zip(links, trips_us, cpu_us, strict=True):
            before_s = _cpu_s(process)
            trips.append(median(await round_trips(caller, link, nbytes, count)) / 2)
            cpu.append((_cpu_s(process) - before_s) * 1e6 / (count + count // 10) / 2)
    ratios = [tls / plain for plain, tls in zip(*trips_us, strict=True)]
    how = (
        f"half the round trip of an echo, p50 of {count} trips, TLS and plain TCP interleaved in "
        f"{effort.rounds} rounds; plain {median(trips_us[0]):.0f} us"
    )
    name = f"link, TLS, {nbytes // 1024} KB"
    cpu_how = f"both ends, one way; plain {median(cpu_us[0]):.0f} us; as the row before"
    return [
        figure(name, median(trips_us[1]), "us", how),
        figure(f"{name}, over plain", median(ratios), "ratio", f"median ratio of rounds; {how}"),
        figure(f"{name}, processor", median(cpu_us[1]), "us", cpu_how),
    ]


async def _handshakes(caller: Peer, plain: str, encrypted: str, identity: TlsIdentity) -> list[Row]:
    times_ms: list[list[float]] = [[], []]
    for _ in range(HANDSHAKES):
        for times, address, tls in zip(times_ms, (plain, encrypted), (None, identity), strict=True):
            started = perf_counter_ns()
            link = await _dial(address, caller, tls)
            times.append((perf_counter_ns() - started) / 1e6)
            link.close("measured")
            await link.wait_ended()
    how = (
        f"dial to open link: two connections, mutual TLS 1.3, no resumption; p50 of {HANDSHAKES}; "
        f"plain {median(times_ms[0]):.2f} ms"
    )
    return [figure("link, TLS, opened", median(times_ms[1]), "ms", how)]


async def _dial(address: str, handler: Peer, tls: TlsIdentity | None) -> Link:
    # Each kind of link has an id of its own, or the newer would replace the older.
    own_id = CALLER.id if tls is not None else "plain"
    return await dial(
        [address], own_id=own_id, session=1, target_id=ECHO.id, handler=handler, tls=tls
    )


def _cpu_s(process: psutil.Process) -> float:
    """Of this process and the echo."""
    total = 0.0
    for each in (process, psutil.Process()):
        times = each.cpu_times()
        total += times.user + times.system
    return total


@contextmanager
def _echo(folder: Path) -> Generator[tuple[psutil.Process, str, str]]:
    """A process that echoes frames, by its plain and its encrypted address."""
    _enrol(folder)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "din.bench.encrypted", str(folder), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        try:
            ours.settimeout(START_S_MAX)
            ports = ours.recv(32).decode().split()
            if len(ports) != 2:
                raise Unavailable("the process that echoes frames did not start")
            plain, encrypted = (f"tcp:127.0.0.1:{port}" for port in ports)
            yield psutil.Process(process.pid), plain, encrypted
        finally:
            ours.close()
            process.wait(ANSWER_S_MAX)


def _enrol(folder: Path) -> None:
    """Certificates for both ends, of an authority that lives as long as the measurement."""
    from din.trust.authority import open_authority
    from din.trust.requests import new_key_pem, public_key_of_request, signing_request

    now = datetime.now(UTC)
    authority = open_authority(folder, CLUSTER, now)
    for name in (ECHO, CALLER):
        files: TlsFiles = files_in(folder, name.role)
        key = new_key_pem()
        write_atomically(files.key, key, mode=0o600)
        public = public_key_of_request(signing_request(key))
        write_atomically(files.certificate, authority.issue(public, name, now))


async def serve_echo(folder: Path, ready_fd: int) -> None:
    """Listen plain and encrypted, tell both ports, and echo until whoever started us has gone."""
    identity = TlsIdentity(files_in(folder, "gateway"), CLUSTER, ignore_reports)
    servers = [LinkServer(ECHO.id, 1, Peer(is_echo=True), tls=tls) for tls in (None, identity)]
    ports = [server.listen_tcp("127.0.0.1", 0) for server in servers]
    with socket.socket(fileno=ready_fd) as ready:
        ready.sendall(" ".join(map(str, ports)).encode())
        ready.setblocking(False)
        await asyncio.get_running_loop().sock_recv(ready, 1)
    for server in servers:
        server.close()
        await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve_echo(Path(sys.argv[1]), int(sys.argv[2])))
