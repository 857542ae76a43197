"""A join token as text: `DIN1.<SHA256 of the authority>.<id>.<secret>`.

Whoever has it may make one machine a node of the cluster whose authority it pins. No error and no
`repr` shows the secret, nor text that may hold one.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from din.errors import UsageError

VERSION: Final = "DIN1"
SECRET_BYTES: Final = 16
TEXT_BYTES_MAX: Final = 256
"""More than this is no token but a file given by mistake."""

_PARTS: Final = (
    ("the hash of the authority", re.compile(r"[0-9a-f]{64}"), "64 lowercase hex digits"),
    ("the id", re.compile(r"[0-9a-f]{8}"), "8 lowercase hex digits"),
    ("the secret", re.compile(r"[A-Za-z0-9_-]{22}"), "22 letters, digits, '-' or '_'"),
)
_HINT: Final = "copy it whole, as `din token create` printed it"


class JoinToken(Struct, frozen=True):
    """What a token says."""

    authority_sha256: str
    id: str
    secret: str

    @property
    def text(self) -> str:
        """The token to hand on: a secret."""
        return f"{VERSION}.{self.authority_sha256}.{self.id}.{self.secret}"

    def __repr__(self) -> str:
        return f"JoinToken(id={self.id!r})"


def parse_join_token(text: str) -> JoinToken:
    """A token of what a person pasted. Raises UsageError naming the part that is wrong."""
    text = text.strip()
    if len(text) > TEXT_BYTES_MAX:
        raise UsageError(f"a join token has 101 characters, not {len(text)}", hint=_HINT)
    if not text:
        raise UsageError("the join token is empty", hint=_HINT)
    version, *parts = text.split(".")
    if version != VERSION:
        if _is_version(version):
            told = f"begins with {version!r}; this release knows {VERSION}"
        else:
            told = f"does not begin with {VERSION}."
        raise UsageError(f"the join token {told}", hint=_HINT)
    if len(parts) != len(_PARTS):
        raise UsageError(f"the join token has {len(parts) + 1} parts instead of 4", hint=_HINT)
    for part, (what, pattern, form) in zip(parts, _PARTS, strict=True):
        if pattern.fullmatch(part) is None:
            raise UsageError(f"{what} in the join token is not {form}", hint=_HINT)
    return JoinToken(*parts)


def _is_version(text: str) -> bool:
    return re.fullmatch(r"DIN[0-9]{1,4}", text) is not None
