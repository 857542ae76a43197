"""What a program shows a gateway, an API key, and by whose certificate it knows the gateway.

The key comes from a file or a variable, never from an argument: other users of a machine can read
arguments. It is sent by TLS, or in plain text to this machine only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from msgspec import Struct

from din.access.keys import parse_key
from din.errors import Denied, UsageError

KEY_VARIABLE: Final = "DIN_API_KEY"
KEY_FILE_VARIABLE: Final = "DIN_API_KEY_FILE"
CA_FILE_VARIABLE: Final = "DIN_CA_FILE"
FILE_BYTES_MAX: Final = 64 * 1024


class Credentials(Struct, frozen=True):
    """A key (empty = none) and an authority in PEM (empty = those that this machine trusts)."""

    key: str = ""
    authority_pem: str = ""
    node_trust: str = ""
    """Folder of a node that has joined, to speak as that node; its authority then."""

    def __repr__(self) -> str:
        return f"Credentials(has_key={bool(self.key)}, has_authority={bool(self.authority_pem)})"

    def headers_for(self, scheme: str, host: str) -> dict[str, str]:
        """What is sent with each request. Raises Denied when the key would cross a network in
        plain text."""
        if not self.key:
            return {}
        if scheme != "https" and not is_here(host):
            raise Denied(
                f"the API key would go to {host} in plain text",
                hint="name the gateway as https://..., with its authority: --ca FILE (ca_file= in "
                "Python)",
            )
        return {"Authorization": f"Bearer {self.key}"}


def load_credentials(
    environment: Mapping[str, str],
    *,
    key_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> Credentials:
    """A file given wins, then DIN_API_KEY, then the files that variables name. Raises UsageError
    for a file that cannot be read or holds no key; never with its content."""
    text, source = environment.get(KEY_VARIABLE, ""), KEY_VARIABLE
    named = key_file or (environment.get(KEY_FILE_VARIABLE) if not text else None)
    if named:
        text, source = _read(named, "API key"), f"file {os.fspath(named)}"
    key = _checked(text.strip(), source) if text.strip() or named else ""
    authority = ca_file or environment.get(CA_FILE_VARIABLE)
    return Credentials(key, _read(authority, "authority") if authority else "")


def _checked(text: str, source: str) -> str:
    try:
        parse_key(text)
    except UsageError as error:
        raise UsageError(f"{source}: {error.message}", hint=error.hint) from None
    return text


def _read(path: str | os.PathLike[str], what: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(
            f"{what} file {os.fspath(path)!r} cannot be read: {error.strerror}",
            hint="give the path of a file that exists and that you may read",
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(
            f"{what} file {os.fspath(path)!r} has over {FILE_BYTES_MAX} bytes",
            hint="a key file holds one line",
        )
    return data.decode("utf-8", "replace")


def is_here(host: str) -> bool:
    """Whether a host is this machine's loopback."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
