"""DIN: a network of unlike machines that answers inference requests as if it were one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from din.client import Client

from din.version import __version__

__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> object:
    """Import the client only when asked for: `din --help` and the agent never pay for it."""
    if name == "Client":
        from din.client import Client

        return Client
    raise AttributeError(f"module 'din' has no attribute {name!r}")
