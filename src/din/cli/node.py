"""`din node list | inspect | watch | drain`."""

from __future__ import annotations

from typing import Final

import click

from din.cli.display import (
    UNKNOWN,
    Column,
    duration,
    mebibytes,
    number,
    repeat,
    show,
    show_document,
    show_facts,
)
from din.cli.frame import Command, gateway_option, output_option, say, watch_option
from din.client.client import Client, decode_answer
from din.domain.views import NodeList, NodeView

COLUMNS: Final[tuple[Column[NodeView], ...]] = (
    Column("NAME", lambda node: node.name),
    Column("STATUS", lambda node: node.status),
    Column("DEVICE TYPE", lambda node: node.device_type),
    Column("CPU %", lambda node: number(node.health.cpu_percent), is_number=True),
    Column("MEMORY FREE", lambda node: mebibytes(node.health.memory_mib_free), is_number=True),
    Column("TEMP C", lambda node: number(node.health.temperature_c), is_number=True),
    Column("QUEUE", lambda node: str(node.health.queue_length), is_number=True),
    Column("SLICES", lambda node: str(len(node.slices)), is_number=True),
    Column("BEAT", lambda node: duration(node.heartbeat_age_ms), is_number=True),
    Column("NODE ID", lambda node: node.node_id, is_wide=True),
    Column("HEALTH", lambda node: number(node.health_score, 2), is_wide=True, is_number=True),
    Column(
        "GPU %", lambda node: number(node.health.accelerator_percent), is_wide=True, is_number=True
    ),
    Column("RESERVED", lambda node: mebibytes(node.memory_mib_reserved), is_wide=True),
    Column("ADDRESS", lambda node: node.address or UNKNOWN, is_wide=True),
    Column("REASON", lambda node: node.reason, is_wide=True),
)
EMPTY: Final = (
    "no node has joined cluster {cluster}\n"
    "hint: start one with `din node start --name edge-1`; if one runs, `din doctor` tests multicast"
)


def _show_nodes(gateway: str | None, output: str) -> None:
    with Client(gateway) as client:
        answer = client.call("GET", "/api/v1/nodes")
    view = decode_answer(answer, NodeList)
    show(output, answer.body, view.items, COLUMNS, lambda node: node.name)
    if output in ("table", "wide"):
        if not view.items:
            say(EMPTY.format(cluster=view.cluster))
        for node in view.items:
            if node.reason and node.status != "ready":
                say(f"{node.name} is {node.status}: {node.reason}")
            for warning in node.warnings:
                say(f"{node.name}: {warning}")


@click.command(
    "list",
    cls=Command,
    examples=("din node list", "din node list -o wide", "din node list -o json"),
)
@gateway_option
@output_option
@watch_option
def list_nodes(gateway: str | None, output: str, watch: bool) -> None:
    """List nodes with their live state. `-` is what a node does not measure."""
    repeat(lambda: _show_nodes(gateway, output), is_watching=watch)


@click.command("watch", cls=Command, examples=("din node watch", "din node watch -o wide"))
@gateway_option
@output_option
def watch_nodes(gateway: str | None, output: str) -> None:
    """List nodes every 2 s until Ctrl-C."""
    repeat(lambda: _show_nodes(gateway, output), is_watching=True)


@click.command(
    "inspect", cls=Command, examples=("din node inspect edge-1", "din node inspect 3f9a -o json")
)
@click.argument("node")
@gateway_option
@output_option
@watch_option
def inspect_node(node: str, gateway: str | None, output: str, watch: bool) -> None:
    """Everything known of one NODE: a name, an id or the start of an id."""
    repeat(lambda: _show_node(node, gateway, output), is_watching=watch)


def _show_node(node: str, gateway: str | None, output: str) -> None:
    from urllib.parse import quote

    with Client(gateway) as client:
        answer = client.call("GET", f"/api/v1/nodes/{quote(node, safe='')}")
    view = decode_answer(answer, NodeView)
    if output in ("json", "yaml"):
        show_document(output, answer.body)
    elif output == "name":
        click.echo(view.name)
    else:
        show_facts(_facts(view))


def _facts(view: NodeView) -> list[tuple[str, str]]:
    health = view.health
    facts = [
        ("name", view.name),
        ("node id", view.node_id),
        ("status", view.status + (f" ({view.reason})" if view.reason else "")),
        ("device_type", view.device_type),
        ("address", view.address),
        ("last beat", f"{duration(view.heartbeat_age_ms)} ago"),
        ("health", f"{view.health_score:.2f} of 1"),
        ("cpu", _measured(number(health.cpu_percent, 1), " %")),
        ("memory", f"{mebibytes(health.memory_mib_free)} free of {mebibytes(view.memory_mib)}"),
        ("reserved", f"{mebibytes(view.memory_mib_reserved)} for slices"),
        ("temperature", _measured(number(health.temperature_c, 1), " C")),
        ("power", _measured(number(health.power_w, 1), " W")),
        ("gpu", _measured(number(health.accelerator_percent, 1), " %")),
        ("utilization_source", health.utilization_source or UNKNOWN),
        ("queue", str(health.queue_length)),
        ("slices", "\n".join(view.slices) or UNKNOWN),
    ]
    return [*facts, *_profile_facts(view), ("warnings", "\n".join(view.warnings))]


def _measured(text: str, unit: str) -> str:
    return f"{UNKNOWN} (not measured)" if text == UNKNOWN else text + unit


def _profile_facts(view: NodeView) -> list[tuple[str, str]]:
    profile = view.profile
    if profile is None:
        return []
    accelerator = profile.accelerator or "none"
    if profile.accelerator_memory_mib is not None:
        accelerator += f", {mebibytes(profile.accelerator_memory_mib)}"
    return [
        ("processor", f"{profile.cpu_model or UNKNOWN}, {profile.cpu_cores:g} cores"),
        ("instructions", " ".join(profile.cpu_isa)),
        ("accelerator", accelerator),
        ("backends", ", ".join(profile.backends) or "none"),
        ("versions", ", ".join(f"{name} {text}" for name, text in profile.versions.items())),
        ("labels", ", ".join(f"{name}={text}" for name, text in profile.labels.items())),
        ("addresses", "\n".join(profile.addresses)),
        ("fingerprint", profile.fingerprint_sha256),
        ("session", str(profile.session)),
    ]


@click.command("drain", cls=Command, examples=("din node drain edge-1", "din node drain edge-1 -q"))
@click.argument("node")
@gateway_option
@click.option("--dry-run", is_flag=True, help="Only say which slices would move.")
def drain_node(node: str, gateway: str | None, dry_run: bool) -> None:
    """Move the slices of NODE away and give it no new ones, until it is started again.

    --dry-run also names the slices that no other node holds: their model waits for one.
    """
    with Client(gateway) as client:
        view = client.node(node)
        # What it holds now: the answer to the order may come after the first has gone.
        moving = ", ".join(view.slices) or "no slice"
        alone = _only_on(view, client.nodes())
        if not dry_run:
            view = client.drain(view.node_id)
    if alone:
        say(f"on no other node yet: {', '.join(alone)}; until one has them, they answer nobody")
    if dry_run:
        say(f"would drain {view.name}: {moving} would move away")
        return
    click.echo(view.name)
    say(f"{view.name} is {view.status}: {moving} to move away; starting it again ends this")
    say("next: din node watch")


def _only_on(node: NodeView, nodes: NodeList) -> list[str]:
    """Slices of a node that no other ready node holds."""
    others = (each for each in nodes.items if each.node_id != node.node_id)
    held = {name for each in others if each.status == "ready" for name in each.slices}
    return [name for name in node.slices if name not in held]
