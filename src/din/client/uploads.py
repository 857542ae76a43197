"""Files on their way to the gateway's store: by hash, as a stream, and only what is not there.

An upload that broke off goes on where it stands, whatever ended it: the link, this program or the
gateway. Only one that is sealed as it comes begins anew.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from io import BufferedReader
from typing import Final

import msgspec

from din.client.http import PIECE_BYTES, Connection
from din.domain.malformed import MALFORMED
from din.errors import Conflict, Denied, DinError, NotFound, Unreachable, UsageError

CONTROL_MS: Final = 30_000
UPLOAD_MS: Final = 300_000
BYTES_A_MS_MIN: Final = 1_000
"""A link that is slower than this is given up: a file of several GB may take that much longer."""
OCTETS: Final = {"Content-Type": "application/octet-stream"}
RESUMED_BYTES_MIN: Final = 1024 * 1024
"""Smaller files are sent whole: asking how far they came takes as long."""
TRIES_MAX: Final = 5
"""In a row without one more byte there."""
PAUSE_S: Final = 0.5

Progress = Callable[[int, int], None]
"""Bytes that were sent, of how many."""


class _Received(msgspec.Struct):
    """How far an upload came."""

    nbytes_received: int


def upload(
    connection: Connection, file: BufferedReader, progress: Progress | None, encrypt: bool | None
) -> str:
    """Store an open file under its SHA256, which is returned. Raises DinError."""
    nbytes = os.fstat(file.fileno()).st_size
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    target = f"/api/v1/artifacts/{sha256}"
    if _is_there(connection, target):
        return sha256
    start, tries = _stands_at(connection, target, nbytes), 0
    while True:
        try:
            _send(connection, file, target, encrypt, nbytes, start, progress)
        except (Unreachable, Conflict, UsageError) as error:
            start, tries = _next_start(connection, target, nbytes, start, tries, error)
        else:
            return sha256


def _send(
    connection: Connection,
    file: BufferedReader,
    target: str,
    encrypt: bool | None,
    nbytes: int,
    start: int,
    progress: Progress | None,
) -> None:
    query = "" if encrypt is None else f"?encrypt={str(encrypt).lower()}"
    rest = {"Content-Range": f"bytes {start}-{nbytes - 1}/{nbytes}"} if start else {}
    connection.request(
        "PUT",
        target + query,
        lambda: _pieces(file, start, nbytes, progress),
        {**OCTETS, "Content-Length": str(nbytes - start), **rest},
        timeout_ms=UPLOAD_MS + nbytes // BYTES_A_MS_MIN,
        is_idempotent=nbytes < RESUMED_BYTES_MIN,  # a large one goes on elsewhere the next time
    )


def _next_start(
    connection: Connection, target: str, nbytes: int, start: int, tries: int, error: DinError
) -> tuple[int, int]:
    """Where to go on after this error, and how often in a row that did not help. Raises the error
    when it is of no use."""
    if isinstance(error, UsageError):
        if start == 0:
            raise error
        return 0, TRIES_MAX  # what was there was not the beginning of this file: once more, whole
    if tries >= TRIES_MAX or nbytes < RESUMED_BYTES_MIN:
        raise error
    time.sleep(PAUSE_S)
    try:
        found = _stands_at(connection, target, nbytes)
    except Unreachable:
        return start, tries + 1
    if isinstance(error, Conflict):
        return (found, tries + 1) if tries + 1 < TRIES_MAX else (0, TRIES_MAX)
    return found, 0 if found > start else tries + 1


def _stands_at(connection: Connection, target: str, nbytes: int) -> int:
    """How much of it is there. 0 as well where the gateway does not say, as older ones do not."""
    if nbytes < RESUMED_BYTES_MIN:
        return 0
    try:
        answer = connection.request("GET", f"{target}/upload", timeout_ms=CONTROL_MS)
        size = msgspec.json.decode(answer.body, type=_Received).nbytes_received
    except (NotFound, Denied, *MALFORMED):
        return 0
    return size if 0 < size < nbytes else 0


def _is_there(connection: Connection, target: str) -> bool:
    try:
        connection.request("HEAD", target, timeout_ms=CONTROL_MS)
    except (NotFound, Denied):
        return False  # an answer to HEAD has no words: what is refused, PUT tells
    return True


def _pieces(
    file: BufferedReader, start: int, nbytes: int, progress: Progress | None
) -> Iterator[bytes]:
    file.seek(start)
    sent = start
    while piece := file.read(PIECE_BYTES):
        yield piece
        sent += len(piece)
        if progress is not None:
            progress(sent, nbytes)
