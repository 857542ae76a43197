"""What `din doctor` sees of this machine without asking anybody."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from din import version
from din.cli.check import Check
from din.cli.sources import load_gateway

MULTICAST_GROUP: Final = "224.0.0.251"
"""The group of mDNS, RFC 6762 section 3; the test uses a port of its own."""
MULTICAST_WAIT_S: Final = 1.0
MULTICAST_FIX: Final = "din node start --gateway URL"
FREE_MIB_MIN: Final = 512
MEMORY_MIB_MIN: Final = 256
MIB: Final = 1024 * 1024
SANDBOX_TIMEOUT_S: Final = 20.0
SANDBOX_WORDS: Final = (
    "limits only, so nodes of this user refuse to run workers",
    "system calls are filtered",
    "system calls are filtered, no files and no network are seen",
    "system calls are filtered, no files and no network are seen, Landlock besides",
)
ACCELERATOR_PROGRAMS: Final = ("nvidia-smi", "npu-smi")


def check_python() -> Check:
    """Version and word size."""
    seen = f"Python {platform.python_version()}, {platform.machine()}, DIN {version.__version__}"
    if sys.version_info < (3, 11) or sys.maxsize < 2**32:
        return Check("python", "bad", f"{seen}; 64-bit Python 3.11 is needed", "python3.11 -m venv")
    return Check("python", "ok", seen)


def check_memory() -> Check:
    """Memory that could be had now."""
    import psutil

    memory = psutil.virtual_memory()
    seen = f"{memory.available // MIB} MiB of {memory.total // MIB} MiB available"
    if memory.available // MIB < MEMORY_MIB_MIN:
        return Check("memory", "warn", seen, "ps aux --sort=-rss | head")
    return Check("memory", "ok", seen)


def check_backends() -> Check:
    """Engines that are installed; found, not imported."""
    found = [name for name in ("onnxruntime", "openvino", "ncnn") if importlib.util.find_spec(name)]
    if not found:
        seen = "no inference engine is installed"
        return Check("backends", "bad", seen, "pip install onnxruntime")
    return Check("backends", "ok", ", ".join(found))


def check_sandbox() -> Check:
    """What confines the workers of a node of this user, tried in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "din.sandbox"],
            capture_output=True,
            timeout=SANDBOX_TIMEOUT_S,
            check=True,
        )
        found = json.loads(done.stdout)
        level, reason = int(found["level"]), str(found["reason"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        return Check("sandbox", "bad", f"could not be tried: {error}", "python -m din.sandbox")
    seen = f"level {level} of 3: {SANDBOX_WORDS[level]}"
    if reason:
        seen += f"; {reason}"
    if level == 0:
        return Check("sandbox", "bad", seen, "din node start --insecure")
    if level == 1:
        return Check("sandbox", "warn", seen, "sysctl -w user.max_user_namespaces=10000")
    return Check("sandbox", "ok", seen)


def check_accelerators() -> Check:
    """Programs that would tell of a GPU or NPU."""
    found = [name for name in ACCELERATOR_PROGRAMS if shutil.which(name)]
    if "npu-smi" in found:
        # The device_type of a node must match the board's name exactly.
        fix = 'npu-smi info | grep "Product Name"'
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
        return Check("temperature", "warn", seen, "din node start --temp-sensor PATH")
    more = f" and {len(readable) - 1} more" if len(readable) > 1 else ""
    return Check("temperature", "ok", readable[0] + more)


def check_state() -> Check:
    """Whether the state directory can be written and has room."""
    config = load_gateway({}, os.environ)
    folder = Path(config.state_dir)
    try:
        while not folder.exists():
            folder = folder.parent
        free_mib = shutil.disk_usage(folder).free // MIB
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        seen = f"{folder} is not writable: {error.strerror}"
        return Check("state", "bad", seen, "din up --state-dir PATH")
    seen = f"{config.state_dir}, {free_mib} MiB free"
    if free_mib < FREE_MIB_MIN:
        return Check("state", "warn", seen, f"du -xh {config.state_dir} | sort -h | tail")
    return Check("state", "ok", seen)


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


MULTICAST_TELLS: Final = (
    "nodes fall back to unicast; between machines it is lost by Wi-Fi client isolation, IGMP "
    "snooping without a querier, VLANs, cloud networks and firewalls on UDP 5353"
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
