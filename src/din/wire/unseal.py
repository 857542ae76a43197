"""What an agent and its child `din.unseal` say to each other: one JSON message each, over a socket
that keeps message boundaries; descriptors travel beside the answer."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

MESSAGE_BYTES_MAX: Final = 128 * 1024


class Unseal(Struct, frozen=True, kw_only=True):
    """Agent -> child: is this slice what the gateway signed, and if so, what is in its file."""

    ticket: int
    statement: str
    """Canonical, as `wire.statement` makes it of the order."""
    signature: bytes
    grant: bytes
    artifact: int
    """Index of the file in the statement's `artifacts`; -1 = only check the signature."""
    path: str = ""
    """Where that file lies."""


class Unsealed(Struct, frozen=True, kw_only=True, tag_field="kind", tag="unsealed"):
    """Child -> agent, with one descriptor of a sealed memfd, or none when there was no file."""

    ticket: int


class UnsealFailed(Struct, frozen=True, kw_only=True, tag_field="kind", tag="failed"):
    """Child -> agent: nothing may be loaded; `code` is a DIN error code."""

    ticket: int
    code: str
    message: str
    hint: str


UnsealAnswer = Unsealed | UnsealFailed
