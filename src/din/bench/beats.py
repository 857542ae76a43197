"""Heartbeats: how many a gateway takes in a second of one core."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Final

import psutil
from msgspec.structs import replace

from din.bench.decision import BOARD
from din.bench.load import load, shot_at
from din.bench.network import TIMEOUT_MS, Network, cpu_s
from din.bench.row import Effort, Row, figure, median
from din.domain.node import NodeHealth, NodeId
from din.errors import Unavailable
from din.wire.heartbeat import Heartbeat, encode_heartbeat
from din.wire.registration import CONTENT_TYPE, Refusal, decode_answer, encode_registration

BEATS_MIN: Final = 20_000
NODES: Final = 100
BEATS_PER_NODE: Final = 400
"""In one round."""
CONNECTIONS: Final = 8


def heartbeats(effort: Effort) -> Iterator[Row]:
    """Beats over HTTP keep-alive connections that one core of a gateway takes."""
    with Network() as network:
        network.start_gateway()
        node_ids = [NodeId(f"{number + 1:016x}") for number in range(NODES)]
        for node_id in node_ids:
            _register(network, node_id)
        assert network.gateway is not None
        gateway = psutil.Process(network.gateway.pid)
        rates: list[float] = []
        for number in range(effort.rounds):
            shot = shot_at(network.url, network.folder, "beats", _beats(node_ids, number))
            before_s = cpu_s(gateway)
            seen = load(shot, CONNECTIONS, effort.window_s)
            rates.append(seen.answered / max(cpu_s(gateway) - before_s, 0.01))
            if seen.failed:
                raise Unavailable(f"beats were refused: {seen.failed}")
    how = (
        f"answered beats of {NODES} nodes over CPU time of the gateway, {CONNECTIONS} "
        f"connections, median of {effort.rounds} rounds of {effort.window_s:g} s"
    )
    yield figure("heartbeats taken by a core", median(rates), "per s", how, at_least=BEATS_MIN)


def _register(network: Network, node_id: NodeId) -> None:
    profile = replace(BOARD, node_id=node_id, name=f"node-{int(node_id, 16)}")
    body = encode_registration(profile, network.cluster)
    request = urllib.request.Request(
        f"{network.url}/api/v1/nodes", body, {"Content-Type": CONTENT_TYPE}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_MS / 1000) as answer:
        said = decode_answer(answer.read())
    if isinstance(said, Refusal):
        raise Unavailable(f"a registration was refused: {said.reason}")


def _beats(node_ids: list[NodeId], number: int) -> list[bytes]:
    """Whole HTTP requests of one round, each node's counter going up."""
    first = number * BEATS_PER_NODE
    return [
        _request(
            encode_heartbeat(
                Heartbeat(
                    node_id=node_id,
                    session=BOARD.session,
                    counter=first + counter + 1,
                    health=NodeHealth(cpu_percent=counter % 100, memory_mib_free=4000),
                )
            )
        )
        for counter in range(BEATS_PER_NODE)
        for node_id in node_ids
    ]


def _request(body: bytes) -> bytes:
    head = (
        f"POST /api/v1/heartbeat HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
