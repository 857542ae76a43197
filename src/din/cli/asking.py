"""The gateway that a command asks, with the key and the authority that it shows and expects."""

from __future__ import annotations

import os
from pathlib import Path

from din.cli.frame import asking_files, say
from din.cli.sources import collect, default_state_dir
from din.client.client import Client, gateway_of
from din.client.credentials import KEY_VARIABLE


def ask(gateway: str | None) -> Client:
    """A client of a gateway: --key-file and --ca, else variables, else the settings' files, else
    for https the authority of this machine's own gateway. Raises UsageError."""
    key_file, ca_file = asking_files()
    settings = collect("client", {}, os.environ).values
    if key_file is None and not os.environ.get(KEY_VARIABLE):
        key_file = str(settings["api_key_file"].value or "") or None
    ca_file = ca_file or str(settings["ca_file"].value or "") or None
    url = gateway or gateway_of(os.environ)
    if ca_file is None and url.startswith("https:"):
        own = default_state_dir(os.environ) / "trust" / "ca.pem"
        ca_file = str(own) if own.is_file() else None
    if key_file is not None:
        _warn_of_readers(key_file)
    return Client(url, key_file=key_file, ca_file=ca_file)


def _warn_of_readers(path: str) -> None:
    try:
        mode = Path(path).expanduser().stat().st_mode
    except OSError:
        return  # the client says what is wrong with it
    if mode & 0o077:
        say(f"warning: others may read the API key in {path}: chmod 600 {path}")
