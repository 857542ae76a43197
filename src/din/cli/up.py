"""`din up` and `din down`: a gateway, and a node for this machine, in the background."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from din.cli import daemon
from din.cli.asking import ask, default_gateway
from din.cli.frame import Command, say
from din.cli.options import gateway_options, gateway_settings, http_url, node_settings
from din.cli.sources import collect
from din.cli.start import AGENT_MODULE, GATEWAY_MODULE, check_ports, joining_words, run_in_place
from din.cli.token import show_new_token
from din.config import GatewayConfig, NodeConfig, is_loopback
from din.errors import Conflict, Denied, DinError, Unauthenticated, Unavailable, Unreachable
from din.sandbox.asking import level_words
from din.transport.membership import FOLDER, has_joined, read_membership

GATEWAY_WAIT_S: Final = 30.0
NODE_WAIT_S: Final = 30.0


@click.command(
    "up",
    cls=Command,
    examples=(
        "din up",
        "din up --no-node --port 8000 --cluster line-4",
        "din up --host 0.0.0.0",
    ),
)
@click.option("--no-node", is_flag=True, help="Start the gateway only.")
@click.option("--foreground", is_flag=True, help="Run the gateway here, without a node.")
@gateway_options
def up(no_node: bool, foreground: bool, **flags: Any) -> None:
    """Start a gateway and a node on this machine, and wait until both answer."""
    config = gateway_settings(flags)
    if foreground:
        check_ports(config)
        run_in_place(GATEWAY_MODULE, config)
    with daemon.turn(config.state_dir, say):
        if not no_node:
            node = _node_beside(config)
            facts = {"own_node_dir": node.state_dir, "own_node_name": node.name}
            config = msgspec.structs.replace(config, **facts)
        url = _gateway_up(config)
        if not no_node:
            _node_up(config, url)
    click.echo(url)
    if config.is_tls:
        show_new_token(url)
    elif not config.insecure_network and (Path(config.state_dir) / "trust" / "ca.pem").is_file():
        say(
            "other machines could join before, and cannot reach this gateway: "
            "din down, then din up --host ADDRESS"
        )
    say(f"next: {_key_command(url) or (_node_command(url) if no_node else _model_command(url))}")


def _key_command(url: str) -> str:
    """What is missing where this gateway asks for a key that was not given."""
    try:
        with ask(url) as client:
            client.models()
    except Unauthenticated:
        return "din key create root --scope admin --save root.key, or DIN_API_KEY_FILE where one is"
    except DinError:
        return ""  # a key that may do something else, or what the commands before would have told
    return ""


def _node_command(url: str) -> str:
    gateway = "" if url == "http://127.0.0.1:8000" else f" --gateway {url}"
    return f"din node start --name edge-1{gateway}"


def _model_command(url: str) -> str:
    """Commands find a gateway of the usual state directory by themselves, and no other."""
    try:
        with ask(url) as client:
            has_models = bool(client.models().items)
    except DinError:
        has_models = False  # it asks for a key; it has just answered, so nothing else is wrong
    gateway = "" if default_gateway(os.environ) == url else f" --gateway {url}"
    return f"din model {'list' if has_models else 'register MODEL.onnx'}{gateway}"


def _gateway_up(config: GatewayConfig) -> str:
    """URL of the gateway of this state directory, started unless it runs."""
    path = daemon.run_folder(config.state_dir) / "gateway.json"
    running = daemon.read_record(path)
    url = http_url(config.plain_host, config.port)
    if running is not None:
        if running.url != url:
            raise Conflict(
                f"a gateway already runs on state directory {config.state_dir} at {running.url}",
                hint="stop it with `din down`, or give this one its own --state-dir",
            )
        _check_tls_of_running(config, url)
        _await_running(running)
        say(f"the gateway already runs at {url} (process {running.pid})")
        return url
    if config.port == 0:
        config = msgspec.structs.replace(config, port=_free_port(config.plain_host))
        url = http_url(config.plain_host, config.port)
    check_ports(config)
    record, child = daemon.launch(
        GATEWAY_MODULE,
        config,
        name=config.cluster,
        url=url,
        state_dir=config.state_dir,
        record_name="gateway",
    )
    _await_gateway(path, record, child)
    say(f"the gateway of cluster {config.cluster} answers at {url}; its log is {record.log_path}")
    return url


def _check_tls_of_running(config: GatewayConfig, url: str) -> None:
    """Raises Conflict when the gateway that runs lets no machine in and this one should."""
    if not config.is_tls:
        return
    with ask(url) as client:
        is_tls = bool(client.gateway().tls_url)
    if not is_tls:
        raise Conflict(
            f"the gateway already runs at {url}, for this machine only",
            hint="stop it with `din down`, then run this again",
        )


def _free_port(host: str) -> int:
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _await_gateway(path: Path, record: daemon.Record, child: subprocess.Popen[bytes]) -> None:
    give_up_s = time.monotonic() + GATEWAY_WAIT_S
    while daemon.sleep_until(give_up_s):
        exit_code = child.poll()
        if exit_code is not None:
            path.unlink(missing_ok=True)
            raise daemon.error_of_exit(record, exit_code)
        if _answering_pid(record.url) == record.pid:
            daemon.leave(child)
            return
    daemon.stop(path, record)
    child.wait()
    raise Unreachable(
        f"the gateway did not answer at {record.url} in {GATEWAY_WAIT_S:g} s",
        hint=f"its log is {record.log_path}",
    )


def _await_running(record: daemon.Record) -> None:
    """An earlier command may have been interrupted, or the gateway may stand still."""
    give_up_s = time.monotonic() + GATEWAY_WAIT_S
    while _answering_pid(record.url) != record.pid:
        _check_running(record)
        if not daemon.sleep_until(give_up_s):
            raise Unreachable(
                f"the gateway runs as process {record.pid} but did not answer at {record.url} in "
                f"{GATEWAY_WAIT_S:g} s",
                hint=f"its log is {record.log_path}; `din down` stops it",
            )


def _check_running(record: daemon.Record) -> None:
    if not daemon.is_running(record):
        raise Unavailable(
            f"{record.program} {record.name} (process {record.pid}) ended just now",
            hint=f"its log is {record.log_path}",
        )


def _answering_pid(url: str) -> int:
    """Process of the gateway that answers there; 0 = none does."""
    try:
        with ask(url) as client:
            return client.gateway().pid
    except Unauthenticated:
        raise  # a key was shown, and it is a wrong one: waiting will not make it right
    except DinError:
        return 0


def _node_up(gateway: GatewayConfig, url: str) -> None:
    path = daemon.run_folder(gateway.state_dir) / "node.json"
    running = daemon.read_record(path)
    if running is not None:
        say(f"node {running.name} already runs (process {running.pid})")
        _await_node(path, running, None, url)
        return
    config = _reaching(_node_beside(gateway), gateway, url)
    record, child = daemon.launch(
        AGENT_MODULE,
        config,
        name=config.name,
        url=url,
        state_dir=gateway.state_dir,
        record_name="node",
    )
    try:
        _await_node(path, record, child, url)
    finally:
        daemon.leave(child)
    _warn_of_sandbox(url, record)


def _warn_of_sandbox(url: str, record: daemon.Record) -> None:
    """Who starts a node is told when a stranger's model could reach more than it should."""
    try:
        with ask(url) as client:
            nodes = client.nodes().items
    except DinError:
        return  # it asks for a key; `din doctor` tells the same
    for node in nodes:
        if node.name == record.name and node.sandbox_level in (0, 1):
            say(f"warning: workers here are at {level_words(node.sandbox_level)}; see `din doctor`")


def _await_node(
    path: Path, record: daemon.Record, child: subprocess.Popen[bytes] | None, url: str
) -> None:
    give_up_s = time.monotonic() + NODE_WAIT_S
    while daemon.sleep_until(give_up_s, step_s=0.1):
        if child is None:
            _check_running(record)
        elif (exit_code := child.poll()) is not None:
            path.unlink(missing_ok=True)
            raise daemon.error_of_exit(record, exit_code)
        if _is_ready(url, record):
            say(f"node {record.name} has joined")
            return
    raise Unavailable(
        f"node {record.name} runs but has not joined in {NODE_WAIT_S:g} s",
        hint=f"its log is {record.log_path}; stop both with `din down`",
    )


def _node_beside(gateway: GatewayConfig) -> NodeConfig:
    """Settings of this machine's node: whose it is and where it lies."""
    config = node_settings({"cluster": gateway.cluster})
    # Home: who runs the gateway here has every key already.
    config = msgspec.structs.replace(
        config,
        labels={"trust": "high", **config.labels},
        insecure=config.insecure or gateway.insecure,
    )
    if "DIN_NODE_STATE_DIR" not in os.environ:
        place = str(Path(gateway.state_dir) / "nodes" / config.name)
        config = msgspec.structs.replace(config, state_dir=place)
    return config


def _reaching(config: NodeConfig, gateway: GatewayConfig, url: str) -> NodeConfig:
    """The node knows its gateway. Where that gave it a certificate, other machines reach it as they
    reach the gateway; it takes any port if its own is taken."""
    config = msgspec.structs.replace(config, gateway=(url,))
    if gateway.is_tls and not is_loopback(gateway.host):
        config = _among_others(config, gateway)
    try:
        daemon.check_port(config.host, config.port)
    except Conflict:
        say(f"port {config.port} is in use, so the node takes a free one")
        config = msgspec.structs.replace(config, port=0)
    return config


def _among_others(config: NodeConfig, gateway: GatewayConfig) -> NodeConfig:
    folder = Path(config.state_dir) / FOLDER
    if not has_joined(folder):
        say(
            f"node {config.name} has no certificate, so it meets other machines through the "
            f"gateway only: din down, then din up --host {gateway.host}"
        )
        return config
    membership = read_membership(folder)
    if not membership.is_own:
        return config  # it was joined by a token, with addresses of its own
    # Loopback, where the gateway listens there, is told last and stays when others change.
    own = tuple(reversed(membership.gateways))
    is_chosen = collect("node", {}, os.environ).values["host"].source != "default"
    host = config.host if is_chosen else gateway.host
    return msgspec.structs.replace(config, gateway=own, host=host)


def _is_ready(url: str, record: daemon.Record) -> bool:
    """A clone's name gets a suffix, so any ready node of that name or of its clones will do."""
    try:
        with ask(url) as client:
            nodes = client.nodes().items
    except Denied:
        # The gateway asks for a key, or for another one: the node's own log says it as well.
        return "it joined" in joining_words(daemon.log_tail(record), record.name)
    except DinError:
        return False
    name = record.name
    return any(
        node.status == "ready" and (node.name == name or node.name.startswith(f"{name}-"))
        for node in nodes
    )


@click.command("down", cls=Command, examples=("din down", "din down --state-dir /var/lib/din"))
@click.option("--state-dir", type=click.Path(), metavar="PATH", help="Default ~/.local/state/din.")
@click.option("--dry-run", is_flag=True, help="Only say what would be stopped.")
def down(state_dir: str | None, dry_run: bool) -> None:
    """Stop what `din up` started with this state directory, and nothing else."""
    from din.cli.sources import load_gateway

    config = load_gateway({"state_dir": state_dir}, os.environ)
    if not _exists(daemon.run_folder(config.state_dir)):
        say(f"nothing that `din up` started with {config.state_dir} is running")
        return
    with daemon.turn(config.state_dir, say):
        _stop_all(config.state_dir, dry_run=dry_run)


def _exists(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except PermissionError as error:
        raise Denied(
            f"{folder} cannot be read: {error.strerror}", hint="run it as the user who started DIN"
        ) from None


def _stop_all(state_dir: str, *, dry_run: bool) -> None:
    found = daemon.records_in(state_dir)
    if not found:
        say(f"nothing that `din up` started with {state_dir} is running")
    for path, record in found:
        what = f"{record.program} {record.name} (process {record.pid})"
        if dry_run:
            say(f"would stop {what}")
            continue
        is_gentle = daemon.stop(path, record)
        say(f"stopped {what}" if is_gentle else f"killed {what}, which did not stop by itself")
