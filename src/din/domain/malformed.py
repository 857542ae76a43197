"""What decoding bytes of somebody else may raise."""

from __future__ import annotations

from typing import Final

import msgspec

MALFORMED: Final[tuple[type[Exception], ...]] = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
)
"""Depth is an error of its own: msgspec goes down into fields that it passes over, too."""
