"""`din node list | inspect | watch | drain | undrain | lift | label`."""

from __future__ import annotations

from typing import Final

import click

from din.cli import complete
from din.cli.asking import ask
from din.cli.crashes import crash_lines
from din.cli.display import (
    UNKNOWN,
    Column,
    count,
    duration,
    mebibytes,
    number,
    repeat,
    show,
    show_document,
    show_facts,
)
from din.cli.frame import Command, gateway_option, output_option, say, shout, watch_option
from din.cli.options import pairs
from din.client.client import decode_answer
from din.domain.views import ForeignServerView, NodeList, NodeView
from din.errors import CannotPlace
from din.sandbox.asking import level_words


def standing(view: NodeView) -> str:
    """The status, and that it is drained where the status is another."""
    is_said = view.status == "draining" or not view.is_draining
    return view.status if is_said else f"{view.status}, draining"


def _capacity(view: NodeView) -> str:
    share = view.health.capacity_percent
    return UNKNOWN if share is None else str(share)


def _level(view: NodeView) -> str:
    return UNKNOWN if view.sandbox_level is None else str(view.sandbox_level)


def servers_in(view: NodeView) -> str:
    """Servers of others behind a node, with the number of models that each runs."""
    told = [
        f"{each.name or each.url} ({len(each.models) if each.is_up else 'down'})"
        for each in view.foreign
    ]
    return ", ".join(told) or UNKNOWN


COLUMNS: Final[tuple[Column[NodeView], ...]] = (
    Column("NAME", lambda node: node.name),
    Column("STATUS", standing),
    Column("DEVICE TYPE", lambda node: node.device_type),
    Column("CPU %", lambda node: number(node.health.cpu_percent), is_number=True),
    Column("MEMORY FREE", lambda node: mebibytes(node.health.memory_mib_free), is_number=True),
    Column("TEMP C", lambda node: number(node.health.temperature_c), is_number=True),
    Column("QUEUE", lambda node: str(node.health.queue_length), is_number=True),
    Column("SLICES", lambda node: str(len(node.slices)), is_number=True),
    Column("BEAT", lambda node: duration(node.heartbeat_age_ms), is_number=True),
    Column("SERVERS", servers_in, is_wide=True),
    Column("NODE ID", lambda node: node.node_id, is_wide=True),
    Column("HEALTH", lambda node: number(node.health_score, 2), is_wide=True, is_number=True),
    Column(
        "GPU %", lambda node: number(node.health.accelerator_percent), is_wide=True, is_number=True
    ),
    Column("CAPACITY %", _capacity, is_wide=True, is_number=True),
    Column("RESERVED", lambda node: mebibytes(node.memory_mib_reserved), is_wide=True),
    Column("ADDRESS", lambda node: node.address or UNKNOWN, is_wide=True),
    Column("SANDBOX", _level, is_wide=True, is_number=True),
    Column("REASON", lambda node: node.reason, is_wide=True),
)
INSECURE: Final = (
    "INSECURE: the gateway speaks plain text off loopback (--insecure-network) and obeys anybody; "
    "see `din doctor`"
)
PLAIN: Final = "plain text and no authentication (--insecure-network)"
INSECURE_NODES: Final = f"INSECURE: {PLAIN} at {{names}}; see `din doctor`"
NAMES_MAX: Final = 5
EMPTY: Final = (
    "no node has joined cluster {cluster}\n"
    "hint: start one with `din node start --name edge-1`; if one runs, `din doctor` tests multicast"
)


def insecure_names(view: NodeList) -> list[str]:
    """Nodes that run with --insecure-network, a few by name."""
    names = [node.name for node in view.items if node.is_insecure_network]
    more = [f"{len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else []
    return [*names[:NAMES_MAX], *more]


def _show_nodes(gateway: str | None, output: str) -> None:
    with ask(gateway) as client:
        answer = client.call("GET", "/api/v1/nodes")
    view = decode_answer(answer, NodeList)
    show(output, answer.body, view.items, COLUMNS, lambda node: node.name)
    if view.is_insecure_network:
        shout(INSECURE)
    if insecure := insecure_names(view):
        shout(INSECURE_NODES.format(names=", ".join(insecure)))
    if output in ("table", "wide"):
        if not view.items:
            say(EMPTY.format(cluster=view.cluster))
        for node in view.items:
            if node.is_draining:
                say(_drain_words(node))
            elif node.reason and node.status != "ready":
                say(f"{node.name} is {node.status}: {node.reason}")
            for kept_out in node.quarantined:
                say(f"{node.name} keeps out {kept_out.slice}: {kept_out.reasons[0]}")
            for server in node.foreign:
                if not server.is_up:
                    say(f"{node.name}: server {server.url} is down: {server.reason}")
            for warning in node.warnings:
                say(f"{node.name}: {warning}")


def _drain_words(node: NodeView) -> str:
    words = f"{node.name} is {standing(node)}"
    if node.status != "draining":
        words += f" ({node.reason})"
    words += f": holds {', '.join(node.slices)}" if node.slices else ": holds no slice"
    if node.is_drain_forced:
        return f"{words}, by force"
    return f"{words}; no other node can take {_names(node)}" if node.stuck else words


@click.command(
    "list",
    cls=Command,
    examples=("din node list", "din node list -o wide", "din node list -o json"),
)
@gateway_option
@output_option
@watch_option
def list_nodes(gateway: str | None, output: str, watch: bool) -> None:
    """List nodes with their live state. `-` is what a node does not measure.

    A lost node is listed for ten minutes more. Its name stays its own, and its drain stands, until
    it is revoked.
    """
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
@click.argument("node", shell_complete=complete.nodes)
@gateway_option
@output_option
@watch_option
def inspect_node(node: str, gateway: str | None, output: str, watch: bool) -> None:
    """Everything known of one NODE: a name, an id or the start of an id."""
    repeat(lambda: _show_node(node, gateway, output), is_watching=watch)


def _show_node(node: str, gateway: str | None, output: str) -> None:
    from urllib.parse import quote

    with ask(gateway) as client:
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
        ("status", standing(view) + (f" ({view.reason})" if view.reason else "")),
        ("device_type", view.device_type),
        ("address", view.address),
        ("INSECURE", PLAIN if view.is_insecure_network else ""),
        ("sandbox", level_words(view.sandbox_level) if view.sandbox_level is not None else UNKNOWN),
        ("last beat", f"{duration(view.heartbeat_age_ms)} ago"),
        ("health", f"{view.health_score:.2f} of 1"),
        ("cpu", _measured(number(health.cpu_percent, 1), " %")),
        ("memory", f"{mebibytes(health.memory_mib_free)} free of {mebibytes(view.memory_mib)}"),
        ("reserved", f"{mebibytes(view.memory_mib_reserved)} for slices"),
        ("swap", f"{mebibytes(health.swap_mib_used)} used" if health.swap_mib_used else ""),
        ("temperature", _measured(number(health.temperature_c, 1), " C")),
        ("power", _measured(number(health.power_w, 1), " W")),
        ("capacity", _measured(_capacity(view), " %")),
        ("slowed by", ", ".join(health.limits)),
        ("gpu", _measured(number(health.accelerator_percent, 1), " %")),
        ("utilization_source", health.utilization_source or UNKNOWN),
        ("queue", str(health.queue_length)),
        ("slices", "\n".join(view.slices) or UNKNOWN),
        *(("oip server", server_words(each)) for each in view.foreign),
        *((f"stuck {each.slice}", "\n".join(each.reasons)) for each in view.stuck),
        *((f"kept out {each.slice}", "\n".join(each.reasons)) for each in view.quarantined),
        ("crashes", crash_lines(view.crashes)),
    ]
    return [*facts, *_profile_facts(view), ("warnings", "\n".join(view.warnings))]


def server_words(server: ForeignServerView) -> str:
    """A server of others and what can be asked of it."""
    who = " ".join(each for each in (server.name, server.version) if each)
    state = "up" if server.is_up else f"down ({server.reason})"
    lines = [f"{server.url}, {who}, {state}" if who else f"{server.url}, {state}"]
    if server.container:
        lines.append(f"container: {server.container}")
    if server.models:
        lines.append(f"models: {', '.join(server.models)}")
    lines += [f"{name}: {reason}" for name, reason in server.unready.items()]
    return "\n".join(lines)


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
        *(("engine", f"{each}; {each.hint}" if each.hint else str(each)) for each in view.engines),
        ("versions", ", ".join(f"{name} {text}" for name, text in profile.versions.items())),
        ("labels", ", ".join(f"{name}={text}" for name, text in profile.labels.items())),
        ("addresses", "\n".join(profile.addresses)),
        ("hardware hash", profile.fingerprint_sha256),
        ("session", str(profile.session)),
    ]


@click.command(
    "drain",
    cls=Command,
    examples=(
        "din node drain edge-1",
        "din node drain edge-1 --dry-run",
        "din node drain edge-1 --force",
    ),
)
@click.argument("node", shell_complete=complete.nodes)
@gateway_option
@click.option("--dry-run", is_flag=True, help="Only say which slices would move or stay.")
@click.option(
    "--force", is_flag=True, help="Serve nothing more from now on, whether others can or not."
)
def drain_node(node: str, gateway: str | None, dry_run: bool, force: bool) -> None:
    """Move the slices of NODE away and give it no new ones, until `din node undrain NODE`.

    It serves each slice until another node has it ready. What no other node can take stays and is
    served, with the reasons told (exit code 3); it moves as soon as a node can take it.
    """
    with ask(gateway) as client:
        # What it holds now: the answer to the order may come after the first has gone.
        held = client.node(node)
        moving = ", ".join(held.slices) or "no slice"
        view = client.drain(held.node_id, is_forced=force, is_dry_run=dry_run)
    _say_stuck(view)
    if dry_run:
        end = "served nowhere after that" if force else "kept and served"
        stays = f"; {count(len(view.stuck), 'slice')} would be {end}" if view.stuck else ""
        say(f"would drain {view.name}: {moving} would move away{stays}")
        return
    click.echo(view.name)
    if view.is_drain_forced:
        say(f"{view.name} serves nothing any more: {moving} to move away")
    else:
        say(f"{view.name} is {standing(view)}: {moving} to move away, served until others do")
    if view.stuck and not view.is_drain_forced:
        raise CannotPlace(
            f"{view.name} keeps and serves {count(len(view.stuck), 'slice')}: no other node can "
            "take that",
            hint="start a node that can, and it moves; `--force` stops it at once; "
            f"`din node undrain {view.name}` takes the drain back",
        )
    say("next: din node list, until it holds no slice")


@click.command("undrain", cls=Command, examples=("din node undrain edge-1",))
@click.argument("node", shell_complete=complete.nodes)
@gateway_option
def undrain_node(node: str, gateway: str | None) -> None:
    """Let NODE take slices again. What has moved away stays where it is."""
    with ask(gateway) as client:
        view = client.undrain(node)
    click.echo(view.name)
    when = "" if view.status == "ready" else f" as soon as it is ready; now it is {view.status}"
    say(f"{view.name} may take slices again{when}")


@click.command("lift", cls=Command, examples=("din node lift edge-1",))
@click.argument("node", shell_complete=complete.nodes)
@gateway_option
def lift_node(node: str, gateway: str | None) -> None:
    """Let NODE load slices at once that it keeps out because they ended their workers there.

    Without this they are loaded again by themselves after a while that doubles; a restart of the
    node forgets it as well.
    """
    with ask(gateway) as client:
        view = client.lift(node)
    click.echo(view.name)
    say(f"{view.name} keeps no slice out now; what ended workers: din node inspect {view.name}")


@click.command(
    "label",
    cls=Command,
    examples=("din node label edge-1 trust=high", "din node label edge-1 site=hall-3 trust-"),
)
@click.argument("node", shell_complete=complete.nodes)
@click.argument("labels", nargs=-1, required=True, metavar="NAME=VALUE|NAME-...")
@gateway_option
def label_node(node: str, labels: tuple[str, ...], gateway: str | None) -> None:
    """Give NODE labels, which stand above what it says of itself; NAME- takes one back that it got
    here or with its token.

    Slices marked `sensitive` go to nodes with trust=high only, and leave a node that loses it.
    """
    given = pairs("label", [each for each in labels if not each.endswith("-") or "=" in each])
    taken = [each[:-1] for each in labels if each.endswith("-") and "=" not in each]
    with ask(gateway) as client:
        view = client.label(node, {**given, **dict.fromkeys(taken)})
    click.echo(view.name)
    now = view.profile.labels if view.profile is not None else {}
    shown = ", ".join(f"{name}={text}" for name, text in sorted(now.items())) or "none"
    say(f"labels of {view.name}: {shown}")


def _names(view: NodeView) -> str:
    return ", ".join(stuck.slice for stuck in view.stuck)


def _say_stuck(view: NodeView) -> None:
    """What no other node can take; slices that are refused for the same reasons are named once."""
    by_reasons: dict[tuple[str, ...], list[str]] = {}
    for stuck in view.stuck:
        by_reasons.setdefault(stuck.reasons, []).append(stuck.slice)
    for reasons, slices in by_reasons.items():
        say(f"no other node can take {', '.join(slices)}:")
        for reason in reasons:
            say(f"  {reason}")
