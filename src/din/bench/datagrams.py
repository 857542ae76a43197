"""Heartbeats by datagram: how many a gateway takes and answers in a second of one core, its sockets
included."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPSConnection
from time import monotonic, sleep
from typing import Final
from urllib.parse import urlsplit

import psutil
from msgspec.structs import replace

from din.bench.decision import BOARD
from din.bench.network import TIMEOUT_MS, Network, cpu_s
from din.bench.row import Effort, Row, figure, median
from din.domain.node import NodeHealth, NodeId
from din.domain.trust import PeerName
from din.errors import Unavailable
from din.system.identity import write_atomically
from din.transport.datagram import RECEIVE_BUFFER_BYTES
from din.transport.tls import TlsFiles, client_context, files_in
from din.trust.authority import open_authority
from din.trust.requests import load_key, new_key_pem
from din.wire.beat_datagram import DATAGRAM_BYTES_MAX, BeatKey
from din.wire.heartbeat import Heartbeat, encode_heartbeat
from din.wire.registration import CONTENT_TYPE, Admission, decode_answer, encode_registration

BEATS_MIN: Final = 100_000
NODES: Final = 100
BURST: Final = 200
"""Beats under way at once: as when a fleet's beats come together."""
BURSTS: Final = 500
"""Made before they are sent, so that only the gateway works meanwhile."""
ANSWER_S_MAX: Final = 5.0
NAP_S: Final = 0.001
"""Whoever waits in `recv` is woken by each answer, and then the gateway pays for the change of
processes, which no network would ask of it."""


class _Node:
    """A registered node and its beats so far."""

    def __init__(self, node_id: NodeId, key: bytes) -> None:
        self.node_id = node_id
        self.key = BeatKey(key)
        self.counter = 0

    def beat(self) -> bytes:
        self.counter += 1
        health = NodeHealth(cpu_percent=self.counter % 100, memory_mib_free=4000)
        beat = Heartbeat(
            node_id=self.node_id, session=BOARD.session, counter=self.counter, health=health
        )
        return self.key.seal_beat(encode_heartbeat(beat))


def datagrams(effort: Effort) -> Iterator[Row]:
    """Beats that were answered over CPU time of the gateway."""
    with Network(tls=True, tls_port=0) as network:
        network.start_gateway()
        assert network.gateway is not None
        gateway = psutil.Process(network.gateway.pid)
        facts = json.loads((network.folder / "gateway" / "gateway.json").read_text())
        url = urlsplit(facts["tls_urls"][0])
        host, port = url.hostname or "", url.port or 0
        nodes: list[_Node] = []
        for number in range(NODES):
            files = _prove(network, number)
            nodes.append(_register(network, host, port, files, number))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            sock.setblocking(False)
            sock.connect((host, port))
            rates = [_rate(gateway, sock, nodes) for _ in range(effort.rounds)]
    how = (
        f"beats of {NODES} nodes received, verified, taken and answered over CPU time of the "
        f"gateway's process, sockets included; {BURST} under way, median of {effort.rounds} rounds "
        f"of {BURST * BURSTS}"
    )
    yield figure("datagrams taken by a core", median(rates), "per s", how, at_least=BEATS_MIN)


def _rate(gateway: psutil.Process, sock: socket.socket, nodes: list[_Node]) -> float:
    beats = [node.beat() for _ in range(BURST * BURSTS // len(nodes)) for node in nodes]
    before_s = cpu_s(gateway)
    for first in range(0, len(beats), BURST):
        for beat in beats[first : first + BURST]:
            sock.send(beat)
        _await_answers(sock, BURST)
    return len(beats) / max(cpu_s(gateway) - before_s, 0.01)


def _await_answers(sock: socket.socket, count: int) -> None:
    end = monotonic() + ANSWER_S_MAX
    while count:
        sleep(NAP_S)
        with suppress(BlockingIOError):
            while count:
                sock.recv(DATAGRAM_BYTES_MAX)
                count -= 1
        if monotonic() > end:
            raise Unavailable(f"{count} of {BURST} beats were not answered in {ANSWER_S_MAX:g} s")


def _prove(network: Network, number: int) -> TlsFiles:
    """A certificate for one more node, of the authority that the gateway has on its disk."""
    now = datetime.now(UTC)
    authority = open_authority(network.folder / "gateway" / "trust", network.cluster, now)
    folder = network.folder / "node"
    folder.mkdir(exist_ok=True)
    files = files_in(folder, "node")
    if not files.key.exists():
        write_atomically(files.key, new_key_pem(), mode=0o600)
        write_atomically(files.authority, authority.pem)
    name = PeerName(network.cluster, "node", f"{number + 1:016x}")
    key = load_key(files.key.read_bytes()).public_key()
    write_atomically(files.certificate, authority.issue(key, name, now))
    return files


def _register(network: Network, host: str, port: int, files: TlsFiles, number: int) -> _Node:
    node_id = NodeId(f"{number + 1:016x}")
    profile = replace(BOARD, node_id=node_id, name=f"node-{number}")
    body = encode_registration(profile, network.cluster)
    connection = HTTPSConnection(
        host, port, context=client_context(files), timeout=TIMEOUT_MS / 1000
    )
    try:
        connection.request("POST", "/api/v1/nodes", body, {"Content-Type": CONTENT_TYPE})
        said = decode_answer(connection.getresponse().read())
    finally:
        connection.close()
    if not isinstance(said, Admission) or not said.beat_key:
        raise Unavailable("a registration got no key for datagrams")
    return _Node(node_id, said.beat_key)
