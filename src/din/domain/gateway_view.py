"""What nodes read of a gateway over HTTP, apart from all that people read."""

from __future__ import annotations

from msgspec import Struct


class ErrorView(Struct, frozen=True, kw_only=True):
    """Every error of the control API and of /infer."""

    code: str
    message: str
    hint: str = ""


class SlicingCacheView(Struct, frozen=True, kw_only=True):
    """How the slicing cache of a gateway does, since it started."""

    hits: int
    """A model was cut so before: nothing was carved."""
    misses: int
    """It had to be carved."""
    hit_ratio: float | None
    """Hits among all that was looked up; None before there was any."""
    evictions: int
    """Answers that had to go for newer ones."""
    entries: int
    """Answers that are kept."""
    nbytes: int
    """Of these, with the files of their slices."""
    nbytes_max: int
    """The limit, `slicing_cache_size_mb`."""


class GatewayView(Struct, frozen=True, kw_only=True):
    """GET /api/v1/gateway."""

    schema: str = "din.gateway/1"
    gateway_id: str
    cluster: str
    version: str
    pid: int
    state_path: str
    """The folder with its store, artifacts and keys."""
    discovery_mode: str
    """How nodes find it: auto, multicast or unicast."""
    nodes: int
    """That are registered, whatever their status."""
    models: int
    """That are registered."""
    tls_url: str = ""
    """Where other machines reach it; empty = TLS is off."""
    links: tuple[str, ...] = ()
    """Where nodes open their links, such as `tcp:10.0.0.5:8444`."""
    is_insecure_network: bool = False
    """Plain text is spoken off loopback."""
    is_key_required: bool = False
    """Programs on its machine show an API key as well."""
    slicing_cache: SlicingCacheView | None = None
    """None = it is off."""
