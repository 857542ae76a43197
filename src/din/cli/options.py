"""The options of gateway and node, and how they become settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from din.cli.frame import say
from din.cli.sources import collect, load_gateway, load_node
from din.config import GatewayConfig, NodeConfig, check_gateway_network, is_loopback
from din.errors import UsageError
from din.transport.membership import FOLDER, has_joined

Function = TypeVar("Function", bound=Callable[..., Any])

MODES: Final = click.Choice(("auto", "multicast", "unicast"))
JITTER_RATIOS: Final = (0.1, 0.2)


def _apply(function: Function, decorators: tuple[Callable[[Function], Function], ...]) -> Function:
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


_NO_SCHEDULER_CACHE: Final = (
    "routes are chosen from the live fleet in microseconds, so there is no cached view of it that "
    "could be too old"
)


def _needless(name: str, reason: str, **attributes: Any) -> Callable[[Function], Function]:
    """A flag that the seeds name and that needs no code here: accepted, and explained when used."""

    def tell(_context: click.Context, parameter: click.Parameter, value: object) -> None:
        if value:
            say(f"warning: {parameter.opts[0]} does nothing: {reason}")

    return click.option(name, expose_value=False, hidden=True, callback=tell, **attributes)


def _trust_options(function: Function) -> Function:
    return _apply(
        function,
        (
            click.option(
                "--insecure-network",
                is_flag=True,
                default=None,
                help="Speak plain text on --host, without authentication.",
            ),
            click.option(
                "--tls", is_flag=True, default=None, help="Speak TLS as well; off loopback always."
            ),
            click.option("--tls-port", type=int, help="Port of TLS on --host; 8443."),
            click.option(
                "--insecure",
                is_flag=True,
                default=None,
                help="Read and run models even where nothing on this machine confines who does.",
            ),
            click.option(
                "--require-key",
                is_flag=True,
                default=None,
                help="Ask programs on this machine for an API key as well.",
            ),
        ),
    )


def _slicing_cache_options(function: Function) -> Function:
    return _apply(
        function,
        (
            click.option(
                "--slicing-cache-enabled",
                is_flag=True,
                default=None,
                help="Keep what cutting a model made for the next registration of it.",
            ),
            click.option(
                "--slicing-cache-size-mb",
                type=int,
                metavar="MB",
                help="What the slicing cache may keep, slices included; 128.",
            ),
            click.option(
                "--slicing-cache-evict-policy",
                metavar="NAME",
                help="What goes when the slicing cache is full; lru.",
            ),
        ),
    )


def gateway_options(function: Function) -> Function:
    """Options of `din up` and `din gateway start`, named like the keys of the settings."""
    return _apply(
        _slicing_cache_options(_trust_options(function)),
        (
            click.option("--host", metavar="ADDRESS", help="Address to listen on; 127.0.0.1."),
            click.option("--port", type=int, help="Port of plain HTTP, on loopback; 8000."),
            click.option("--link-port", type=int, help="Port of the links of nodes; any free one."),
            click.option("--cluster", metavar="NAME", help="Name that nodes look for."),
            click.option(
                "--state-dir", type=click.Path(), metavar="PATH", help="Default ~/.local/state/din."
            ),
            click.option("--discovery-mode", type=MODES, help="How nodes find the gateway."),
            click.option(
                "--node-heartbeat-interval",
                "node_heartbeat_interval_ms",
                type=int,
                metavar="MS",
                help="Between two beats of a node; 3000.",
            ),
            click.option(
                "--node-heartbeat-jitter",
                "node_heartbeat_jitter_ms",
                type=int,
                metavar="MS",
                help="Spread of the beats; interval x 0.15.",
            ),
            _needless("--scheduler-cache-ttl", _NO_SCHEDULER_CACHE, type=int),
            click.option(
                "--policy",
                metavar="NAME",
                help="How nodes are chosen; see `din config explain policy`.",
            ),
        ),
    )


def node_options(function: Function) -> Function:
    """Options of `din node start`: the seeds' flags and what joining needs."""
    return _apply(
        _sensor_options(_joining_options(function)),
        (
            click.option("--name", help="Unique in the cluster; from the host name."),
            click.option(
                "--device-type",
                metavar="TYPE",
                help="arch-accelerator-toolkit; detected when not given.",
            ),
            click.option("--cpu-cores", type=float, help="Cores to offer."),
            click.option(
                "--gpu-memory",
                "gpu_memory_mib",
                type=int,
                metavar="MIB",
                help="GPU memory to offer.",
            ),
            click.option("--npu-core", type=int, help="NPU cores to offer."),
            click.option("--memory-mib", type=int, metavar="MIB", help="Memory to offer."),
            click.option("--slice-quota-mib", type=int, help="Disk for slices, MiB; 16384."),
            click.option(
                "--foreign",
                multiple=True,
                metavar="URL",
                help="A server of others (Triton, OVMS, MLServer) whose models it brings in. "
                "Repeatable.",
            ),
            click.option(
                "--runner",
                type=click.Choice(["runc", "crun"]),
                help="Starts servers of others that have a container in the settings.",
            ),
            click.option(
                "--runner-device",
                multiple=True,
                metavar="PATH",
                help="A device that those servers may use, such as /dev/nvidia0. Repeatable.",
            ),
            click.option(
                "--label",
                "labels",
                multiple=True,
                metavar="NAME=VALUE",
                help="For slices that ask for it. Repeatable.",
            ),
        ),
    )


def _sensor_options(function: Function) -> Function:
    return _apply(
        function,
        (
            click.option(
                "--temp-sensor",
                type=click.Path(),
                metavar="PATH",
                help="File with thousandths of a degree C, tmp102:BUS[:ADDRESS] or ipmi:SENSOR.",
            ),
            click.option(
                "--temp-limit-c",
                type=float,
                metavar="C",
                help="Where workers begin to lose cores; from the hardware's own limit.",
            ),
            click.option(
                "--watchdog",
                "watchdog_device",
                type=click.Path(),
                metavar="PATH",
                help="Restart the machine when the node stands still, such as /dev/watchdog.",
            ),
            click.option(
                "--disable-temp-monitoring",
                is_flag=True,
                default=None,
                help="Measure no temperature.",
            ),
            click.option(
                "--temp-poll-interval-ms",
                type=int,
                metavar="MS",
                help="Between two looks at the sensor; 500.",
            ),
        ),
    )


def _joining_options(function: Function) -> Function:
    return _apply(
        function,
        (
            click.option(
                "--backend",
                "backends",
                multiple=True,
                metavar="NAME",
                help="Offer this engine only; else all that work here. Repeatable.",
            ),
            click.option("--host", metavar="ADDRESS", help="Address for peers; 127.0.0.1."),
            click.option("--port", type=int, help="Port for peers; 8080, 0 = any free one."),
            click.option(
                "--gateway", multiple=True, metavar="URL", help="Ask this one only. Repeatable."
            ),
            click.option("--cluster", metavar="NAME", help="The cluster to join."),
            click.option("--discovery-mode", type=MODES, help="How to find the gateway."),
            click.option(
                "--state-dir",
                type=click.Path(),
                metavar="PATH",
                help="Of this node alone; default nodes/NAME in the gateway's.",
            ),
            click.option(
                "--insecure-network",
                is_flag=True,
                default=None,
                help="Allow a --host off loopback: plain text, without authentication.",
            ),
            click.option(
                "--insecure",
                is_flag=True,
                default=None,
                help="Run workers even where nothing on this machine confines them.",
            ),
        ),
    )


def gateway_settings(flags: Mapping[str, object]) -> GatewayConfig:
    """Settings of a gateway, checked as a whole. Raises UsageError; warns on stderr."""
    flags = dict(flags)
    interval = flags.get("node_heartbeat_interval_ms")
    if isinstance(interval, int) and flags.get("node_heartbeat_jitter_ms") is None:
        # The rule of the default, so that a changed interval does not need a second flag.
        flags["node_heartbeat_jitter_ms"] = round(interval * 0.15)
    config = load_gateway(flags, os.environ)
    for warning in collect("gateway", flags, os.environ).warnings:
        say(f"warning: {warning}")
    check_gateway_network(config)
    _check_jitter(config)
    return config


def node_settings(flags: Mapping[str, object]) -> NodeConfig:
    """Settings of a node, checked as a whole. Raises UsageError."""
    flags = {name: value for name, value in flags.items() if value not in ((), [])}
    labels = flags.get("labels")
    if isinstance(labels, tuple | list):
        flags["labels"] = pairs("--label", labels)
    config = load_node(flags, os.environ)
    if config.device_type:
        from din.domain.device import parse_device_type

        parse_device_type(config.device_type)
    if config.foreign or config.runner_device:
        from din.agent.foreign_settings import check_containers, settings_of

        check_containers(settings_of(config.foreign), config)
    _check_network(config)
    return config


def pairs(option: str, texts: Any) -> dict[str, str]:
    """NAME=VALUE words as a mapping. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = str(text).partition("=")
        if not sign or not name:
            raise UsageError(f"{option} {text!r} is not NAME=VALUE", hint=f"{option} line=4")
        if name in found:
            raise UsageError(f"{option} names {name!r} twice", hint="name it once")
        found[name] = value
    return found


def _check_jitter(config: GatewayConfig) -> None:
    ratio = config.node_heartbeat_jitter_ms / config.node_heartbeat_interval_ms
    low, high = JITTER_RATIOS
    if ratio >= 0.5:
        raise UsageError(
            f"node_heartbeat_jitter_ms {config.node_heartbeat_jitter_ms} is half of the interval "
            f"{config.node_heartbeat_interval_ms} ms or more",
            hint=f"use {round(config.node_heartbeat_interval_ms * 0.15)} (interval x 0.15)",
        )
    if not low <= ratio <= high:
        say(
            f"warning: heartbeat jitter {config.node_heartbeat_jitter_ms} ms is {ratio:.2f} of the "
            f"interval, outside {low}-{high}: too little leaves beats together, too much makes "
            f"live nodes look silent; {round(config.node_heartbeat_interval_ms * 0.15)} ms is 0.15"
        )


def _check_network(config: NodeConfig) -> None:
    is_joined = has_joined(Path(config.state_dir) / FOLDER)
    if is_joined and config.insecure_network:
        say("warning: --insecure-network does nothing: this node has joined, and speaks TLS only")
    if not is_joined:
        _check_named(config)
    if is_joined or config.insecure_network or is_loopback(config.host):
        return
    here = ", ".join(sorted(_joined_beside(Path(config.state_dir))))
    joined = f"--name one that has joined ({here}), or join" if here else "join first"
    raise UsageError(
        f"host {config.host} is not loopback, and node {config.name} has no certificate for it",
        hint=f"{joined} (din node join - --gateway https://HOST:8443), or accept plain text with "
        "--insecure-network",
    )


def _check_named(config: NodeConfig) -> None:
    """A node that may ask gateways by TLS only, and has no certificate, would wait for ever."""
    if config.discovery_mode == "multicast" or not config.gateway:
        return
    if all(each.startswith("https://") for each in config.gateway):
        url = config.gateway[0]
        raise UsageError(
            f"node {config.name} has no certificate, and {url} takes joined machines only",
            hint=f"make a token there (din token create), join with it (din node join - --name "
            f"{config.name} --gateway {url}), then start the node",
        )


def _joined_beside(folder: Path) -> list[str]:
    """Nodes of this machine that have joined, in the folder where all of them are."""
    try:
        return [each.name for each in folder.parent.iterdir() if has_joined(each / FOLDER)]
    except OSError:
        return []  # no node has been here


def http_url(host: str, port: int) -> str:
    """URL under which this machine reaches an address that a gateway listens on."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
