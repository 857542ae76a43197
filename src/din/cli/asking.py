"""The gateway that a command asks, with the key and the authority that it shows and expects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from din.cli.check import Place, places, running_gateway
from din.cli.frame import asking_files, say
from din.cli.sources import collect
from din.client.client import Client, gateway_of
from din.client.credentials import KEY_VARIABLE
from din.errors import DinError
from din.transport.membership import has_joined, read_membership


def ask(gateway: str | None) -> Client:
    """A client of a gateway: --key-file and --ca, else variables, else the settings' files, else
    for https the authority that this machine's gateway or nodes have. Raises UsageError."""
    key_file, ca_file = asking_files()
    settings = collect("client", {}, os.environ).values
    if key_file is None and not os.environ.get(KEY_VARIABLE):
        key_file = str(settings["api_key_file"].value or "") or None
    ca_file = ca_file or str(settings["ca_file"].value or "") or None
    url = gateway or default_gateway(os.environ)
    if ca_file is None and url.startswith("https:"):
        ca_file = _authority_for(url, places(os.environ))
    if key_file is not None:
        _warn_of_readers(key_file)
    return Client(url, key_file=key_file, ca_file=ca_file)


def default_gateway(environment: Mapping[str, str]) -> str:
    """Where a command asks that names no gateway: DIN_GATEWAY, else the gateway that runs here,
    else the one that a node of this machine has joined, else port 8000. Raises UsageError."""
    if environment.get("DIN_GATEWAY"):
        return gateway_of(environment)
    found = places(environment)
    running = next((running_gateway(each) for each in found if each.role == "gateway"), None)
    if running is not None:
        return running.url
    joined = (url for each in _joined(found) for url in _gateways_of(each, is_elsewhere=True))
    return next(joined, gateway_of(environment))


def _authority_for(url: str, found: list[Place]) -> str | None:
    """Of the node that has joined just there, else of this machine's gateway, else of any node."""
    joined = _joined(found)
    there = [each for each in joined if url in _gateways_of(each)]
    own = [each for each in found if each.role == "gateway"]
    for place in (*there, *own, *joined):
        authority = place.trust / "ca.pem"
        if authority.is_file():
            return str(authority)
    return None


def _joined(found: list[Place]) -> list[Place]:
    return [each for each in found if each.role == "node" and has_joined(each.trust)]


def _gateways_of(place: Place, *, is_elsewhere: bool = False) -> tuple[str, ...]:
    """Of another machine only, if wanted so: one that ran here does not, when it was not found."""
    try:
        membership = read_membership(place.trust)
    except DinError:
        return ()  # the node itself and `din doctor` say what is wrong with it
    return () if is_elsewhere and membership.is_own else membership.gateways


def _warn_of_readers(path: str) -> None:
    try:
        mode = Path(path).expanduser().stat().st_mode
    except OSError:
        return  # the client says what is wrong with it
    if mode & 0o077:
        say(f"warning: others may read the API key in {path}: chmod 600 {path}")
