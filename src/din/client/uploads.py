"""Files on their way to the gateway's store: by hash, as a stream, and only what is not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from io import BufferedReader
from typing import Final

from din.client.http import PIECE_BYTES, Connection
from din.errors import Denied, NotFound

CONTROL_MS: Final = 30_000
UPLOAD_MS: Final = 300_000
BYTES_A_MS_MIN: Final = 1_000
"""A link that is slower than this is given up: a file of several GB may take that much longer."""
OCTETS: Final = {"Content-Type": "application/octet-stream"}

Progress = Callable[[int, int], None]
"""Bytes that were sent, of how many."""


def upload(
    connection: Connection, file: BufferedReader, progress: Progress | None, encrypt: bool | None
) -> str:
    """Store an open file under its SHA256, which is returned. Raises DinError."""
    nbytes = os.fstat(file.fileno()).st_size
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    target = f"/api/v1/artifacts/{sha256}"
    if _is_there(connection, target):
        return sha256
    query = "" if encrypt is None else f"?encrypt={str(encrypt).lower()}"
    connection.request(
        "PUT",
        target + query,
        lambda: _pieces(file, nbytes, progress),
        {**OCTETS, "Content-Length": str(nbytes)},
        timeout_ms=UPLOAD_MS + nbytes // BYTES_A_MS_MIN,
    )
    return sha256


def _is_there(connection: Connection, target: str) -> bool:
    try:
        connection.request("HEAD", target, timeout_ms=CONTROL_MS)
    except (NotFound, Denied):
        return False  # an answer to HEAD has no words: what is refused, PUT tells
    return True


def _pieces(file: BufferedReader, nbytes: int, progress: Progress | None) -> Iterator[bytes]:
    file.seek(0)
    sent = 0
    while piece := file.read(PIECE_BYTES):
        yield piece
        sent += len(piece)
        if progress is not None:
            progress(sent, nbytes)
