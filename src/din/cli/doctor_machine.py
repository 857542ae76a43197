"""What `din doctor` sees of this machine without asking anybody."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from din.cli.check import Check
from din.cli.service_place import Shown, Systemd, place_of
from din.cli.service_units import ROLES, Role, unit_name
from din.domain.engine import EngineFacts
from din.sandbox.asking import level_words, try_sandbox

MEMORY_MIB_MIN: Final = 256
MIB: Final = 1024 * 1024
MAKERS_PATIENCE_S: Final = 5.0
RUNNERS: Final = ("runc", "crun")
RUNNER_S_MAX: Final = 20.0
ACCELERATOR_PROGRAMS: Final = ("nvidia-smi", "npu-smi")


def check_memory() -> Check:
    """Memory that could be had now."""
    import psutil

    memory = psutil.virtual_memory()
    seen = f"{memory.available // MIB} MiB of {memory.total // MIB} MiB available"
    if memory.available // MIB < MEMORY_MIB_MIN:
        return Check("memory", "warn", seen, "ps aux --sort=-rss | head")
    return Check("memory", "ok", seen)


def check_backends() -> Check:
    """Engines that are installed, each asked in a process of its own: it may end that."""
    import asyncio

    from din.backends.asking import ask_engines

    found = list(asyncio.run(ask_engines()).values())
    broken = [each for each in found if not each.is_usable]
    if not found:
        seen = "no inference engine is installed"
        return Check("backends", "fail", seen, "pip install onnxruntime")
    seen = "; ".join(map(str, found))
    if broken:
        state = "fail" if len(broken) == len(found) else "warn"
        return Check("backends", state, seen, f"python -m din.backends {broken[0].backend}")
    return Check("backends", "ok", seen)


def check_makers() -> Check:
    """Engines of makers of accelerators: what of them is here, each asked in a process of its own,
    and what is missing to the rest."""
    import asyncio

    from din.backends.asking import ask_engine
    from din.backends.registry import MAKERS

    async def ask_all() -> list[EngineFacts]:
        return [await ask_engine(name, patience_s=MAKERS_PATIENCE_S) for name in MAKERS]

    found = asyncio.run(ask_all())
    present = [each for each in found if each.version or each.devices]
    if not present:
        return Check("engines of makers", "ok", f"none is here of {', '.join(MAKERS)}")
    seen = "; ".join(map(str, present))
    return Check("engines of makers", "ok", seen, f"python -m din.backends {present[0].backend}")


def check_sandbox() -> Check:
    """What confines the workers of a node of this user, tried in a process of its own."""
    level, reason = try_sandbox()
    if level is None:
        return Check("sandbox", "fail", reason, "python -m din.sandbox")
    seen = level_words(level)
    if reason:
        seen += f"; {reason}"
    if level == 0:
        return Check("sandbox", "fail", seen, "din node start --insecure")
    if level == 1:
        return Check("sandbox", "warn", seen, "sysctl -w user.max_user_namespaces=10000")
    return Check("sandbox", "ok", seen)


def check_runner() -> Check:
    """Whether servers of others can be started in containers, tried in a process of its own."""
    from din.cli.sources import load_node

    wanted = load_node({}, os.environ).runner
    there = [each for each in RUNNERS if shutil.which(each)]
    if not wanted and not there:
        return Check("runner", "ok", "none is installed: only --runner needs one")
    name = wanted or there[-1]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "din.runner", "--try", name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUNNER_S_MAX,
    )
    if done.returncode == 0:
        return Check("runner", "ok", done.stdout.strip())
    seen, _, hint = done.stderr.strip().partition("\nhint: ")
    state = "fail" if wanted else "warn"
    return Check("runner", state, seen[-500:], hint or f"python -m din.runner --try {name}")


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


def check_services() -> Iterator[Check]:
    """The units of `din service`, where there are any. Raises Unavailable."""
    place, systemd = place_of(is_user=False), Systemd(is_user=False)
    there: list[Role] = [each for each in ROLES if place.unit(each).exists()]
    if not there:
        yield Check("services", "ok", "none is installed: din service install makes them")
        return
    systemd.check_here()
    for each in there:
        yield service_row(each, systemd.show(each))


def service_row(role: Role, shown: Shown) -> Check:
    """How one unit stands."""
    name, unit = f"{role} service", unit_name(role)
    seen = f"{unit} is {shown.active or 'unknown to systemd'}"
    seen += f" ({shown.status})" if shown.status else ""
    if shown.active == "active" and shown.enabled == "enabled":
        return Check(name, "ok", seen)
    if shown.active == "active":
        seen += f", and {shown.enabled or 'not enabled'}: it does not start with the machine"
        return Check(name, "warn", seen, f"sudo systemctl enable {unit}")
    if shown.active == "failed":
        return Check(name, "fail", seen, f"journalctl -e -u {unit}")
    return Check(name, "warn", seen, f"sudo systemctl enable --now {unit}")
