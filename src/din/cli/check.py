"""One thing that `din doctor` looked at, and the places of this machine where it looks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from din.cli.sources import load_gateway, load_node
from din.domain.malformed import MALFORMED
from din.system.identity import IDENTITY_FILE, LOCK_FILE

State = Literal["ok", "warn", "fail"]
NODES_MAX: Final = 64
"""State directories of nodes that are looked at."""
FACTS_BYTES_MAX: Final = 64 * 1024


class Check(NamedTuple):
    """What was tried, what was seen, and the one command that mends it."""

    name: str
    state: State
    seen: str
    fix: str = ""


class Place(NamedTuple):
    """A state directory of a gateway or a node."""

    role: Literal["gateway", "node"]
    name: str
    folder: Path

    @property
    def trust(self) -> Path:
        """Where its certificate lies when it has one."""
        return self.folder / "trust"


class RunningGateway(Struct, frozen=True):
    """`gateway.json`: where a running gateway listens."""

    url: str
    pid: int
    tls_urls: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


def places(environment: Mapping[str, str]) -> list[Place]:
    """Of this machine, as settings name them: the gateway first. Raises UsageError."""
    state = Path(load_gateway({}, environment).state_dir)
    nodes = sorted(_folders_in(state / "nodes"))[:NODES_MAX]
    own = Path(load_node({}, environment).state_dir)
    if own not in nodes:
        nodes.append(own)
    found = [Place("gateway", "gateway", state)]
    found += [Place("node", f"node {folder.name}", folder) for folder in nodes]
    return [place for place in found if _exists(place.folder / IDENTITY_FILE)]


def is_running(place: Place) -> bool:
    """Whether a process has claimed the directory; the claim is looked at, not tried."""
    try:
        lock = place.folder / LOCK_FILE
        holder = lock.read_text(errors="replace").strip().rpartition(" ")[2]
        wanted = (holder, str(lock.stat().st_ino))
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    fields = (line.split() for line in lines if " FLOCK " in line)
    return any((each[4], each[5].rpartition(":")[2]) == wanted for each in fields if len(each) > 5)


def running_gateway(place: Place) -> RunningGateway | None:
    """What a running gateway wrote of itself; None when none runs."""
    if not is_running(place):
        return None
    try:
        with (place.folder / "gateway.json").open("rb") as file:
            return msgspec.json.decode(file.read(FACTS_BYTES_MAX), type=RunningGateway)
    except (OSError, *MALFORMED):
        return None  # it is just starting or stopping


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if each.is_dir()]
    except OSError:
        return []  # whether it may be read is what the check of its mode tells


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True
