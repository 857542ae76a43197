"""`din gateway start` and `din node start`: this process becomes the program."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec
from msgspec import Struct

from din.cli import daemon
from din.cli.frame import Command, say
from din.cli.options import gateway_options, gateway_settings, node_options, node_settings
from din.cli.sources import load_gateway
from din.config import Config, GatewayConfig, NodeConfig
from din.domain.malformed import MALFORMED
from din.errors import NotFound
from din.transport.membership import FOLDER, has_joined

GATEWAY_MODULE: Final = "din.bootstrap.gateway"
AGENT_MODULE: Final = "din.agent"
STARTED_S: Final = 1.5
"""A program that is going to refuse its settings or its directory has done so by then."""


class _LogEntry(Struct):
    """What of a line of an agent's log is told on."""

    event: str = ""
    gateway: str = ""
    how: str = ""
    reason: str = ""
    hint: str = ""
    warning: str = ""


def check_ports(config: GatewayConfig) -> None:
    """Raises Conflict when another program has a port of a gateway, Denied or Unavailable."""
    daemon.check_port(config.plain_host, config.port)
    daemon.check_port(config.host, config.link_port, "--link-port")
    if config.is_tls:
        daemon.check_port(config.host, config.tls_port, "--tls-port")


def run_in_place(module: str, config: Config) -> NoReturn:
    """Replace this process by a program of DIN: signals and exit code are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = daemon.program_command(module)
    os.execve(command[0], command, daemon.program_environment(config, os.environ))


@click.command(
    "start",
    cls=Command,
    examples=("din gateway start", "din gateway start --port 8800 --discovery-mode unicast"),
)
@gateway_options
def start_gateway(**flags: Any) -> None:
    """Run a gateway in the foreground, until Ctrl-C or SIGTERM."""
    config = gateway_settings(flags)
    check_ports(config)
    run_in_place(GATEWAY_MODULE, config)


@click.command(
    "start",
    cls=Command,
    examples=(
        "din node start --name edge-1",
        "din node start --name edge-gpu-01 --device-type x86_64-cuda11.8-trt8.6 --cpu-cores 8 "
        "--gpu-memory 6144 --temp-sensor /sys/class/hwmon/hwmon0/temp1_input --port 8080",
        "din node start --name edge-2 --gateway https://10.0.0.5:8443 --label line=4 --detach",
    ),
)
@node_options
@click.option("--detach", is_flag=True, help="Leave it running; stop it with `din node stop`.")
def start_node(detach: bool, **flags: Any) -> None:
    """Run a node in the foreground, until Ctrl-C or SIGTERM."""
    config = node_settings(flags)
    if not detach:
        if not _is_running(config):
            _check_port(config)
            run_in_place(AGENT_MODULE, config)
        return
    with daemon.turn(config.state_dir, say):
        if _is_running(config):
            return
        _check_port(config)
        record = _detached(config)
    click.echo(config.name)
    say(f"node {config.name} runs as process {record.pid}; its log is {record.log_path}")
    say(joining_words(daemon.log_tail(record), config.cluster))
    has_certificate = has_joined(Path(config.state_dir) / FOLDER)
    # Who has joined from elsewhere may do what nodes do: lists are for people with a key.
    say(f"next{', on the machine of the gateway' if has_certificate else ''}: din node list")


def joining_words(log_lines: Sequence[str], cluster: str) -> str:
    """Whether the node that wrote this log has joined since its start, and how it found whom."""
    warned = ""
    for line in reversed(log_lines):
        try:
            entry = msgspec.json.decode(line, type=_LogEntry)
        except MALFORMED:
            continue
        if entry.event == "joined":
            return f"it joined {entry.gateway}, {entry.how}{warned}"
        if entry.event == "registration_warning":
            warned = f"\nwarning: {entry.warning}{warned}"
        if entry.event == "not_joined":
            hint = f"; {entry.hint}" if entry.hint else ""
            return f"it has not joined yet: {entry.reason}{hint}"
        if entry.event == "started":
            break
    return f"it still looks for a gateway of cluster {cluster}; its log says what it tries"


def _is_running(config: NodeConfig) -> bool:
    running = daemon.read_record(daemon.run_folder(config.state_dir) / "node.json")
    if running is not None:
        say(f"node {running.name} already runs (process {running.pid})")
    return running is not None


def _check_port(config: NodeConfig) -> None:
    if config.port:
        daemon.check_port(config.host, config.port)


def _detached(config: NodeConfig) -> daemon.Record:
    """Start a node that outlives this command."""
    path = daemon.run_folder(config.state_dir) / "node.json"
    record, child = daemon.launch(
        AGENT_MODULE,
        config,
        name=config.name,
        url="",
        state_dir=config.state_dir,
        record_name="node",
    )
    give_up_s = time.monotonic() + STARTED_S
    while daemon.sleep_until(give_up_s):
        exit_code = child.poll()
        if exit_code is not None:
            path.unlink(missing_ok=True)
            raise daemon.error_of_exit(record, exit_code)
    daemon.leave(child)
    return record


@click.command(
    "stop", cls=Command, examples=("din node stop edge-2", "din node stop --state-dir /srv/edge-2")
)
@click.argument("name", required=False)
@click.option(
    "--state-dir", type=click.Path(), metavar="PATH", help="Where the node was started with one."
)
def stop_node(name: str | None, state_dir: str | None) -> None:
    """Stop the node NAME that was started on this machine with --detach."""
    if name is None and state_dir is None:
        raise click.UsageError("give the node's NAME or its --state-dir")
    own = state_dir or str(Path(load_gateway({}, os.environ).state_dir) / "nodes" / str(name))
    path = daemon.run_folder(own) / "node.json"
    record = daemon.read_record(path)
    if record is None or (name is not None and record.name != name):
        raise NotFound(
            f"no node {name or ''} started with --detach runs from {own}",
            hint="`din down` stops the node of `din up`; others end where they were started",
        )
    daemon.stop(path, record)
    say(f"stopped node {record.name} (process {record.pid})")
