"""The forms that settings have: what a value may be, and settings that are made of others."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

Section = Literal["gateway", "node", "client"]
LogLevel = Literal["info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]
DiscoveryMode = Literal["auto", "multicast", "unicast"]
Isolate = Literal["none", "tenant"]
Port = Annotated[int, Meta(ge=0, le=65535)]
Text = Annotated[str, Meta(max_length=4096)]
Cores = Annotated[float, Meta(gt=0, le=4096)]
Count = Annotated[int, Meta(ge=0, le=4096)]
Mebibytes = Annotated[int, Meta(ge=0, le=2**24)]
LimitC = Annotated[float, Meta(ge=40, le=110)]
Rate = Annotated[int, Meta(ge=1, le=2**30)]
Pattern = Annotated[str, Meta(min_length=1, max_length=64)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=32)]
NodeName = Annotated[str, Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?\Z")]
Label = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")]


class ContainerSetting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that the node starts itself, in a container of `runner`."""

    image: Text
    """Folder with an OCI image layout, or with a root filesystem."""
    digest: Text = ""
    """sha256:... that the manifest of an image layout has to have; empty = whatever it has."""
    command: Annotated[tuple[Text, ...], Meta(max_length=256)] = ()
    """Program and words; empty = what the image says."""
    environment: Annotated[dict[str, Text], Meta(max_length=256)] = {}
    mounts: Annotated[dict[str, Text], Meta(max_length=32)] = {}
    """Folder or file here -> where the server sees it, read-only."""
    memory_mib: Annotated[int, Meta(ge=16, le=2**24)] = 4096
    user: Annotated[str, Meta(pattern=r"^([0-9]{1,9}:[0-9]{1,9})?\Z")] = ""
    """UID:GID of the server; empty = the image's where it is a number, else nobody."""
    port: Port = 0
    """That the server listens on, on 127.0.0.1 of its container; 0 = the URL's."""


class ForeignSetting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server behind a node that speaks the Open Inference Protocol."""

    url: Text
    models: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """Which of its models are offered; empty = all that it lists."""
    token_file: Text = ""
    """File with what it wants to see as a bearer token."""
    token_env: Text = ""
    """Environment variable of the node with the same."""
    container: ContainerSetting | None = None
    """How the node starts it; null = it runs already."""


def default_node_name(host_name: str) -> str:
    """A host name as an RFC 1123 label."""
    label = re.sub(r"[^a-z0-9-]+", "-", host_name.partition(".")[0].lower()).strip("-")[:63]
    return label.strip("-") or "node"
