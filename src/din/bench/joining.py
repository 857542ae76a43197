"""How long a machine takes to become one of a cluster: pin, key, request, certificate."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from din.bench.network import Network, installed
from din.bench.row import Effort, Row, figure, median
from din.domain.enrolment import CreateToken, NewToken
from din.domain.node import NodeId
from din.enrol.joining import join
from din.errors import Unavailable
from din.system.clock import wall_clock_ms
from din.transport.membership import CHILD_S, EnrolOrder, decode_enrol_answer, enrol_command

JOIN_MS_MAX: Final = 25.0
JOINS: Final = 10
"""In one round of each kind."""


def joins(effort: Effort) -> Iterator[Row]:
    """A join as its child does it, and with the start of that child."""
    with Network(tls=True, tls_port=0) as network:
        network.start_gateway()
        facts = json.loads((network.folder / "gateway" / "gateway.json").read_text())
        urls = tuple(facts["tls_urls"])
        join(_order(network, urls, 0), wall_clock_ms)  # the gateway imports what it needs
        alone_ms: list[float] = []
        whole_ms: list[float] = []
        for number in range(1, effort.rounds * JOINS + 1):
            alone_ms.append(_alone(_order(network, urls, 2 * number)))
            whole_ms.append(_whole(_order(network, urls, 2 * number + 1)))
    how = (
        f"two connections by TLS 1.3 to a gateway of its own, fresh key, files on disk at both "
        f"ends; p50 of {len(alone_ms)}"
    )
    yield figure("node join", median(alone_ms), "ms", how, at_most=JOIN_MS_MAX)
    yield figure(
        "node join, with its process", median(whole_ms), "ms", f"`python -m din.enrol join`; {how}"
    )


def _order(network: Network, urls: tuple[str, ...], number: int) -> EnrolOrder:
    with network.client() as client:
        body = msgspec.json.encode(CreateToken())
        answer = client.call("POST", "/api/v1/trust/tokens", body, is_idempotent=False)
    made = msgspec.json.decode(answer.body, type=NewToken)
    folder = tempfile.mkdtemp(prefix="joined-", dir=network.folder)
    return EnrolOrder(
        folder=str(Path(folder) / "trust"),
        gateways=urls,
        token=made.token,
        node_id=NodeId(f"{number + 1:016x}"),
        name=f"node-{number}",
    )


def _alone(order: EnrolOrder) -> float:
    began = perf_counter()
    join(order, wall_clock_ms)
    return (perf_counter() - began) * 1000


def _whole(order: EnrolOrder) -> float:
    began = perf_counter()
    done = subprocess.run(
        enrol_command("join"),
        input=msgspec.json.encode(order),
        stdout=subprocess.PIPE,
        env=installed(),
        timeout=CHILD_S,
        check=False,
    )
    spent_ms = (perf_counter() - began) * 1000
    if decode_enrol_answer(done.stdout).node_id != order.node_id:
        raise Unavailable("another node joined than was ordered")
    return spent_ms
