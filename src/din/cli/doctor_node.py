"""What a gateway says to the certificates of this machine's nodes, and whether links can be
opened: what each node itself would meet, without any API key."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from din.cli.check import Check, Place, is_running
from din.cli.doctor_gateway import gateway_fix
from din.client.client import decode_answer
from din.client.credentials import Credentials
from din.client.http import Connection
from din.config import is_loopback
from din.domain.gateway_view import GatewayView
from din.errors import DinError, Unauthenticated
from din.transport.membership import has_joined, read_membership

ANSWER_MS: Final = 5000
DIAL_S: Final = 2.0


def check_admission(found: list[Place]) -> Iterator[Check]:
    """Rows of every node of this machine that has joined; none of them raises."""
    for place in found:
        if place.role == "node" and has_joined(place.trust):
            yield from _check_node(place)


def _check_node(place: Place) -> Iterator[Check]:
    name, failed = f"{place.name} admission", None
    try:
        urls = read_membership(place.trust).gateways
    except DinError as unread:
        yield Check(name, "fail", unread.message, f"ls -l {place.trust}")
        return
    for url in urls:
        try:
            view = _asked(url, place.trust)
        except DinError as error:
            failed = Check(name, "fail", error.message, _fix(place, url, error))
            continue
        yield Check(name, "ok", f"{url} takes its certificate")
        yield from _check_links(place, view)
        return
    if failed is not None:
        yield failed


def _asked(url: str, trust: Path) -> GatewayView:
    """The gateway's answer to the node that has this folder. Raises DinError."""
    connection = Connection(url, credentials=Credentials(node_trust=str(trust)))
    try:
        answer = connection.request("GET", "/api/v1/gateway", timeout_ms=ANSWER_MS)
    finally:
        connection.close()
    return decode_answer(answer, GatewayView)


def _fix(place: Place, url: str, error: DinError) -> str:
    node = place.folder.name
    if not isinstance(error, Unauthenticated):
        return gateway_fix(url, error)
    if "revoked" in error.message:
        # There is no way back for the id: the folder holds it.
        stop = f"din node stop {node}, then " if is_running(place) else ""
        away = f"mv {place.folder} {place.folder}.old"
        return f"{stop}{away}, then din node join - --name {node} --gateway {url}"
    return f"din node start --name {node}"


def _check_links(place: Place, view: GatewayView) -> Iterator[Check]:
    """Tensors come by links, which have a port of their own."""
    dialled = [urlsplit(each.replace(":", "://", 1)) for each in view.links]
    known = [(each.hostname or "", each.port or 0) for each in dialled if each.scheme == "tcp"]
    away = [(host, port) for host, port in known if not is_loopback(host)]
    if not away:
        return
    name, shown = f"{place.name} link", ", ".join(f"{host}:{port}" for host, port in away)
    for address in away:
        with suppress(OSError), socket.create_connection(address, DIAL_S):
            yield Check(name, "ok", f"TCP {address[0]}:{address[1]} answers")
            return
    ports = "/".join(str(port) for port in sorted({port for _, port in away}))
    seen = f"TCP {shown} does not answer: no slice can run here"
    yield Check(
        name, "fail", seen, f"let TCP {ports} through the firewall of the gateway's machine"
    )
