"""`din doctor`: tests this machine and its network and says what it saw, with a fix for each fault.

It reports only what it tried: a multicast test that heard nothing says so and lists what may be
behind it, it does not claim to know.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import click

from din import version
from din.cli.asking import ask
from din.cli.display import Column, show
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.sources import load_gateway
from din.client.client import gateway_of
from din.config import GatewayConfig
from din.errors import DinError, Unavailable

Verdict = Literal["ok", "warning", "failed"]
MULTICAST_GROUP: Final = "224.0.0.251"
"""The group of mDNS, RFC 6762 section 3; the test uses a port of its own."""
MULTICAST_WAIT_S: Final = 1.0
FREE_MIB_MIN: Final = 512
MEMORY_MIB_MIN: Final = 256
MIB: Final = 1024 * 1024
ACCELERATOR_PROGRAMS: Final = ("nvidia-smi", "npu-smi")


class Check(NamedTuple):
    """What was tried, what was seen, and what to do about it."""

    name: str
    verdict: Verdict
    seen: str
    fix: str = ""


COLUMNS: Final[tuple[Column[Check], ...]] = (
    Column("CHECK", lambda check: check.name),
    Column("VERDICT", lambda check: check.verdict),
    Column("SEEN", lambda check: check.seen),
)


@click.command("doctor", cls=Command, examples=("din doctor", "din doctor -o json"))
@gateway_option
@output_option
def doctor(gateway: str | None, output: str) -> None:
    """Test this machine and its network. Exit code 4 when a test failed."""
    checks = run_checks(gateway)
    document = {"schema": "din.doctor/1", "items": [check._asdict() for check in checks]}
    show(output, json.dumps(document).encode(), checks, COLUMNS, lambda check: check.name)
    if output in ("table", "wide"):
        for check in checks:
            if check.fix:
                say(f"{check.name}: {check.fix}")
    failed = [check.name for check in checks if check.verdict == "failed"]
    if failed:
        raise Unavailable(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")


def run_checks(gateway: str | None) -> list[Check]:
    """All checks; none of them raises."""
    tests: tuple[Callable[[], Check], ...] = (
        check_python,
        check_memory,
        check_backends,
        check_accelerators,
        check_temperature,
        check_state,
        check_network,
        check_multicast,
        lambda: check_gateway(gateway),
        lambda: check_nodes(gateway),
    )
    return [_tried(test) for test in tests]


def _tried(test: Callable[[], Check]) -> Check:
    try:
        return test()
    except DinError as error:
        name = getattr(test, "__name__", "check").removeprefix("check_")
        return Check(name, "failed", error.message, error.hint)


def check_python() -> Check:
    """Version and word size."""
    seen = f"Python {platform.python_version()}, {platform.machine()}, DIN {version.__version__}"
    if sys.version_info < (3, 11) or sys.maxsize < 2**32:
        return Check("python", "failed", seen, "use 64-bit Python 3.11 or newer")
    return Check("python", "ok", seen)


def check_memory() -> Check:
    """Memory that could be had now."""
    import psutil

    memory = psutil.virtual_memory()
    seen = f"{memory.available // MIB} MiB of {memory.total // MIB} MiB available"
    if memory.available // MIB < MEMORY_MIB_MIN:
        return Check("memory", "warning", seen, "stop other programs, or offer less: --memory-mib")
    return Check("memory", "ok", seen)


def check_backends() -> Check:
    """Engines that are installed; found, not imported."""
    found = [name for name in ("onnxruntime", "openvino", "ncnn") if importlib.util.find_spec(name)]
    if not found:
        fix = "install one: pip install onnxruntime"
        return Check("backends", "failed", "no inference engine is installed", fix)
    return Check("backends", "ok", ", ".join(found))


def check_accelerators() -> Check:
    """Programs that would tell of a GPU or NPU."""
    found = [name for name in ACCELERATOR_PROGRAMS if shutil.which(name)]
    if "npu-smi" in found:
        fix = 'device_type must match exactly: npu-smi info | grep "Product Name"'
        return Check("accelerators", "ok", ", ".join(found), fix)
    return Check("accelerators", "ok", ", ".join(found) or "none found, which is fine")


def temperature_sensors(root: Path = Path("/sys")) -> list[Path]:
    """Files of this machine that hold a temperature."""
    zones = sorted(root.glob("class/thermal/thermal_zone*/temp"))
    return [*zones, *sorted(root.glob("class/hwmon/hwmon*/temp*_input"))]


def check_temperature() -> Check:
    """Whether any sensor can be read."""
    readable: list[str] = []
    for path in temperature_sensors():
        try:
            readable.append(f"{path} {int(path.read_text()) / 1000:.0f} C")
        except (OSError, ValueError):
            continue
    if not readable:
        seen = "no sensor: temperature stays unknown (shown as -)"
        fix = "name one with --temp-sensor if this machine has any"
        return Check("temperature", "warning", seen, fix)
    more = f" and {len(readable) - 1} more" if len(readable) > 1 else ""
    return Check("temperature", "ok", readable[0] + more)


def check_state() -> Check:
    """Whether the state directory can be written and has room."""
    config: GatewayConfig = load_gateway({}, os.environ)
    folder = Path(config.state_dir)
    while not folder.exists():
        folder = folder.parent
    free_mib = shutil.disk_usage(folder).free // MIB
    seen = f"{config.state_dir}, {free_mib} MiB free"
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fix = "make it writable, or set state_dir (DIN_STATE_DIR, --state-dir)"
        return Check("state", "failed", f"{folder} is not writable: {error.strerror}", fix)
    if free_mib < FREE_MIB_MIN:
        return Check("state", "warning", seen, "make room, or set state_dir elsewhere")
    return Check("state", "ok", seen)


def check_network() -> Check:
    """Whether this machine's settings expose plain text."""
    config = load_gateway({}, os.environ)
    if config.insecure_network:
        seen = "INSECURE: plain text off loopback, and whoever reaches the port is obeyed"
        fix = "unset insecure_network unless nobody else is on that network"
        return Check("network", "warning", seen, fix)
    return Check("network", "ok", f"HTTP stays on {config.host}")


def check_multicast() -> Check:
    """Send one datagram to the mDNS group and hear it again, on a port of our own."""
    try:
        heard = hears_itself()
    except OSError as error:
        seen = f"multicast to {MULTICAST_GROUP} is refused: {error.strerror}"
        return Check("multicast", "warning", seen, MULTICAST_FIX)
    if not heard:
        seen = f"nothing heard from {MULTICAST_GROUP} in {MULTICAST_WAIT_S:g} s"
        return Check("multicast", "warning", seen, MULTICAST_FIX)
    seen = f"{MULTICAST_GROUP} works on this machine; other machines were not tried"
    return Check("multicast", "ok", seen)


MULTICAST_FIX: Final = (
    "nodes fall back to unicast by themselves; to name the gateway: din node start --gateway URL. "
    "Between machines multicast is lost by Wi-Fi client isolation, IGMP snooping without a "
    "querier, VLANs, cloud networks and firewalls on UDP 5353"
)


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


def check_gateway(gateway: str | None) -> Check:
    """Whether the gateway answers, and with which version."""
    url = gateway or gateway_of(os.environ)
    try:
        with ask(url) as client:
            view = client.gateway()
    except DinError as error:
        return Check("gateway", "failed", error.message, error.hint)
    nodes = f"{view.nodes} node" + ("" if view.nodes == 1 else "s")
    seen = f"{view.cluster} at {url}, {nodes}, found by {view.discovery_mode}"
    if view.version != version.__version__:
        fix = f"the gateway is {view.version}, this is {version.__version__}: install the same"
        return Check("gateway", "warning", seen, fix)
    return Check("gateway", "ok", seen)


def check_nodes(gateway: str | None) -> Check:
    """Whether nodes are ready, and why the others are not."""
    try:
        with ask(gateway) as client:
            nodes = client.nodes().items
    except DinError:
        return Check("nodes", "warning", "not asked, since no gateway answered")
    away = [f"{node.name} is {node.status}: {node.reason}" for node in nodes if node.reason]
    ready = sum(node.status == "ready" for node in nodes)
    seen = f"{ready} of {len(nodes)} ready"
    if ready == len(nodes) and nodes:
        return Check("nodes", "ok", seen)
    return Check("nodes", "warning", seen, _node_fix(away))


def _node_fix(away: Sequence[str]) -> str:
    return "; ".join(away) or "start one: din node start --name edge-1"
