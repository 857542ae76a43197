"""URLs of gateways as people write them. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from din.errors import UsageError

PLAIN_PORT: Final = 8000
TLS_PORT: Final = 8443
_PORTS: Final = {"http": PLAIN_PORT, "https": TLS_PORT}


def gateway_url(text: str, scheme: str = "http") -> str:
    """`scheme://host:port` of what a person wrote (`host`, `host:port`, a URL); `scheme` counts
    where none is given. Raises UsageError."""
    hint = f"for example {scheme}://192.168.1.10:{_PORTS[scheme]}"
    try:
        parts = urlsplit(text if "://" in text else f"{scheme}://{text}")
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise UsageError(f"gateway {text!r} is not an address: {error}", hint=hint) from None
    if parts.scheme not in _PORTS or not host or parts.path.strip("/") or parts.query:
        raise UsageError(f"gateway {text!r} is not of the form {scheme}://HOST:PORT", hint=hint)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}:{port}"
