"""What `din doctor` sees of the network from this machine: multicast, unicast, ports."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from din.cli.check import Check, Place, is_running, places, running_gateway
from din.cli.daemon import check_port
from din.cli.options import http_url
from din.cli.sources import load_gateway, load_node
from din.client.client import DEFAULT_GATEWAY, decode_answer
from din.client.http import Connection
from din.config import NodeConfig, is_loopback
from din.domain.gateway_view import GatewayView
from din.domain.malformed import MALFORMED
from din.errors import Conflict, Denied, DinError
from din.system.bound import read_bound
from din.transport.find import browse, browse_command
from din.transport.membership import has_joined, read_membership

MULTICAST_GROUP: Final = "224.0.0.251"
"""The group of mDNS, RFC 6762 section 3; the test uses a port of its own."""
MULTICAST_WAIT_S: Final = 1.0
MULTICAST_FIX: Final = "din node start --gateway URL"
MULTICAST_TELLS: Final = (
    "nodes fall back to unicast; between machines it is lost by Wi-Fi client isolation, IGMP "
    "snooping without a querier, VLANs, cloud networks and firewalls on UDP 5353"
)
BROWSE_MS: int = 1000
LAST_GATEWAY_BYTES_MAX: Final = 4096
DIAL_S: Final = 1.0
DIALLED_MAX: Final = 4
ASK_MS: Final = 1000


def check_multicast() -> Check:
    """Send one datagram to the mDNS group and hear it again, on a port of our own."""
    try:
        heard = hears_itself()
    except OSError as error:
        seen = f"multicast to {MULTICAST_GROUP} is refused ({error.strerror}): {MULTICAST_TELLS}"
        return Check("multicast", "warn", seen, MULTICAST_FIX)
    if not heard:
        seen = f"nothing heard from {MULTICAST_GROUP} in {MULTICAST_WAIT_S:g} s: {MULTICAST_TELLS}"
        return Check("multicast", "warn", seen, MULTICAST_FIX)
    seen = f"{MULTICAST_GROUP} works on this machine; other machines were not tried"
    return Check("multicast", "ok", seen)


def hears_itself() -> bool:
    """Whether a datagram to the group comes back over loopback. Raises OSError."""
    word = os.urandom(16)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mouth,
    ):
        ear.bind((MULTICAST_GROUP, 0))
        here = socket.inet_aton("127.0.0.1")
        member = struct.pack("4s4s", socket.inet_aton(MULTICAST_GROUP), here)
        ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        ear.settimeout(MULTICAST_WAIT_S)
        mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
        mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        mouth.sendto(word, (MULTICAST_GROUP, ear.getsockname()[1]))
        try:
            return ear.recv(64) == word
        except TimeoutError:
            return False


def check_announcements() -> Check:
    """Listen for gateways as a node does, on UDP 5353, for a second."""
    config = load_node({}, os.environ)
    if config.discovery_mode == "unicast" or config.gateway:
        why = "named by gateway" if config.gateway else "discovery_mode is unicast"
        return Check("announcements", "ok", f"not listened for: nodes here do not need any ({why})")
    command = browse_command(config.interfaces_allowed, config.interfaces_denied)
    found = asyncio.run(browse(config.cluster, BROWSE_MS, command))
    if found.gateway is not None:
        urls = ", ".join((*found.gateway.tls_urls, *found.gateway.urls)[:DIALLED_MAX])
        seen = f"a gateway of cluster {config.cluster} announces itself at {urls}"
        return Check("announcements", "ok", seen)
    if "already in use" in found.reason:
        return Check("announcements", "warn", found.reason, "ss -lunp 'sport = :5353'")
    return Check("announcements", "warn", found.reason, MULTICAST_FIX)


def check_unicast() -> Check:
    """Dial the gateways that a node here asks when multicast brings nothing."""
    config = load_node({}, os.environ)
    urls = list(dict.fromkeys(_unicast_urls(config)))[:DIALLED_MAX]
    refused: list[str] = []
    for url in urls:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port or 8000
        try:
            with socket.create_connection((host, port), DIAL_S):
                return Check("unicast", "ok", f"TCP to {url} is taken")
        except OSError as error:
            refused.append(f"{url}: {error.strerror or error}")
    parts = urlsplit(urls[0])
    fix = "din up" if is_loopback(parts.hostname or "") else f"ssh {parts.hostname} din doctor"
    return Check("unicast", "warn", f"no gateway takes TCP ({'; '.join(refused)})", fix)


def _unicast_urls(config: NodeConfig) -> Iterator[str]:
    if config.gateway:
        yield from config.gateway
        return
    folder = Path(config.state_dir)
    trust = folder / "trust"
    if has_joined(trust):
        yield from read_membership(trust).gateways
    try:
        with (folder / "gateway.json").open("rb") as file:
            last = msgspec.json.decode(file.read(LAST_GATEWAY_BYTES_MAX), type=dict[str, str])
        yield from filter(None, (last.get("url"),))
    except (OSError, *MALFORMED):
        pass  # it has met none yet
    yield DEFAULT_GATEWAY


class _Port(NamedTuple):
    host: str
    number: int
    option: str


def check_ports() -> Iterator[Check]:
    """Whether the ports of the settings are free, or held by DIN itself; each is bound and left."""
    found = places(os.environ)
    own = [each for each in found if each.role == "gateway"]
    if own or not found:
        yield _gateway_ports(own[0] if own else None, os.environ)
    if not own or len(found) > 1:
        yield _node_port(found, load_node({}, os.environ))


def _gateway_ports(place: Place | None, environment: Mapping[str, str]) -> Check:
    config = load_gateway({}, environment)
    wanted = [_Port(config.plain_host, config.port, "--port")]
    wanted += [_Port(config.host, config.tls_port, "--tls-port")] if config.is_tls else []
    wanted += [_Port(config.host, config.link_port, "--link-port")]
    wanted = [each for each in wanted if each.number]
    shown = ", ".join(f"{each.host}:{each.number}" for each in wanted) or "any free ones"
    if place is not None and is_running(place):
        running = running_gateway(place)
        at = running.url if running is not None else "its ports"
        return Check("gateway ports", "ok", f"the gateway that runs here has {at}")
    for each in wanted:
        try:
            check_port(each.host, each.number, each.option)
        except Conflict as error:
            url = http_url(each.host, each.number)
            if each.option == "--port" and (cluster := _din_at(url)):
                seen = f"a gateway of {cluster} has {url}, which another user or place started"
                return Check("gateway ports", "ok", seen)
            fix = f"ss -ltnp 'sport = :{each.number}'"
            return Check("gateway ports", "fail", error.message, fix)
        except Denied as error:
            return Check("gateway ports", "fail", error.message, f"din up {each.option} 8000")
        except DinError as error:
            return Check("gateway ports", "fail", error.message, "ip -brief address")
    return Check("gateway ports", "ok", f"free: {shown}")


def _node_port(found: list[Place], config: NodeConfig) -> Check:
    if not config.port:
        return Check("node port", "ok", "any free one")
    shown = f"{config.host}:{config.port}"
    running = (
        read_bound(each.folder) for each in found if each.role == "node" and is_running(each)
    )
    if any(each is not None and each.port == config.port for each in running):
        return Check("node port", "ok", f"a node that runs here has {shown}")
    try:
        check_port(config.host, config.port)
    except Conflict as error:
        fix = f"ss -ltnp 'sport = :{config.port}'"
        return Check("node port", "warn", error.message, fix)
    except DinError as error:
        return Check("node port", "fail", error.message, "ip -brief address")
    return Check("node port", "ok", f"free: {shown}")


def _din_at(url: str) -> str:
    """The cluster of the gateway that answers there; empty = it is no gateway, or asks for a key
    that was not given and is told as such."""
    connection = Connection(url)
    try:
        answer = connection.request("GET", "/api/v1/gateway", timeout_ms=ASK_MS)
        return f"cluster {decode_answer(answer, GatewayView).cluster}"
    except Denied:
        return "a cluster that asks for a key"
    except DinError:
        return ""
    finally:
        connection.close()
