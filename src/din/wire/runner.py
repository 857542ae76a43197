"""What an agent and its child `din.runner` say to each other: one JSON message each, over a socket
that keeps message boundaries. The child gets one order and tells how it goes until the socket
closes, by which it ends."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from din.config_forms import ContainerSetting

MESSAGE_BYTES_MAX: Final = 128 * 1024
LINE_CHARACTERS_MAX: Final = 1000
"""Of one line of a server's log."""
LINES_MAX: Final = 16
"""In one message."""

Runner = Literal["runc", "crun"]


class Keep(Struct, frozen=True, kw_only=True):
    """Agent -> child: keep this server running."""

    runner: Runner
    container_id: str
    folder: str
    """Where unpacked images, the bundle and the runtime's notes lie, and nothing else."""
    host: str
    port: int
    """Where the server is reached on this machine."""
    setting: ContainerSetting
    devices: tuple[str, ...] = ()


class Standing(Struct, frozen=True, kw_only=True, tag_field="kind", tag="standing"):
    """Child -> agent: how the container is now."""

    state: Literal["preparing", "running", "failed"]
    reason: str = ""
    """Of `failed`: why, and when it begins again."""
    runtime: str = ""
    """Such as `crun 1.8.1`."""
    restarts: int = 0
    pid: int = 0
    """Of the server, as this machine counts; 0 = it does not run."""


class Said(Struct, frozen=True, kw_only=True, tag_field="kind", tag="said"):
    """Child -> agent: lines of the server's log, of which `dropped` were not sent before."""

    lines: tuple[str, ...]
    dropped: int = 0


Told = Standing | Said
