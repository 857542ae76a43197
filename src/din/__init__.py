"""DIN: a network of unlike machines that answers inference requests as if it were one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from din import errors
    from din.client import Client, Inference
    from din.client.saved import read_result

from din.version import __version__

__all__ = ["Client", "Inference", "__version__", "errors", "read_result"]


def __getattr__(name: str) -> object:
    """Import the client only when asked for: `din --help` and the agent never pay for it."""
    if name in ("Client", "Inference"):
        from din import client

        return getattr(client, name)
    if name == "read_result":
        from din.client import saved

        return saved.read_result
    if name == "errors":
        from importlib import import_module

        return import_module("din.errors")
    raise AttributeError(f"module 'din' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
