"""The part of the carver that no model reaches: it starts the part that reads one, keeps what that
gives, under the hash that is found here, and passes its answer on.

It parses nothing but the few bytes before each file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from din.carver.files import Piece, Room, give_file, sha256_of, store_file
from din.carver.spoken import ANSWER, ERROR, FILE, GivenUp, Listener
from din.domain.model import CarveRequest
from din.domain.strategy import SLICES_MAX
from din.errors import DinError, Internal, Unavailable

FILES_MAX: Final = 32 * SLICES_MAX
"""A slice is a model and a few packs."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
COMPLAINT_BYTES_MAX: Final = 8 * 1024

Store = Callable[[Iterable[Piece], int], str]
"""Keeps the pieces, so many bytes together, as one file; its SHA256."""


class Keeper:
    """Of what one confined part gives."""

    def __init__(self, store: Store, bytes_max: int) -> None:
        """`bytes_max`: of all files together; more is a fault of who gives, not of the disk."""
        self._store = store
        self._bytes_left = bytes_max
        self._files_left = FILES_MAX

    def answer(self, stream: socket.socket) -> tuple[bytes, bool]:
        """The answer of who speaks, and whether it is an error. Raises Ended, and DinError when
        what is given cannot be kept or is more than a model gives."""
        listener = Listener(stream)
        while True:
            kind, nbytes = listener.head()
            if kind == FILE:
                self._count(nbytes)
                with suppress(GivenUp):
                    listener.confirm(self._store(listener.pieces(nbytes), nbytes))
            elif kind in (ANSWER, ERROR) and nbytes <= ANSWER_BYTES_MAX:
                return listener.whole(nbytes), kind == ERROR
            else:
                raise Internal(f"the carver said {nbytes} bytes of kind {kind}, which is nothing")

    def _count(self, nbytes: int) -> None:
        self._bytes_left -= nbytes
        self._files_left -= 1
        if self._bytes_left < 0 or self._files_left < 0:
            raise Internal(
                "the carver makes more of this model than a model can give: the file is not "
                "what it seems",
                hint="do not use a model from there",
            )


def store_of(request: CarveRequest) -> Store:
    """Where the files of a request go."""
    if request.is_dry_run:
        return lambda pieces, _nbytes: sha256_of(pieces)
    if request.output_fd >= 0:
        return lambda pieces, nbytes: give_file(request.output_fd, pieces, nbytes)
    room, folder = Room(request.room_bytes), Path(request.output_path)

    def store(pieces: Iterable[Piece], nbytes: int) -> str:
        room.take(nbytes)
        return store_file(folder, pieces, nbytes)

    return store


def store_nothing(_pieces: Iterable[Piece], nbytes: int) -> str:
    """For requests that make no files. Raises Internal."""
    raise Internal(f"the carver gives a file of {nbytes} bytes, and was asked for none")


def ended(exit_code: int, complaint: str) -> DinError:
    """How a part without an answer ended, in words."""
    told = f"; it said: {complaint}" if complaint else ""
    if exit_code == -9:
        return Unavailable(
            f"the carver was killed while it read the model{told}",
            hint="if nobody killed it, the machine was out of memory, or it took too long: free "
            "memory, or register a smaller model",
        )
    how = f"by signal {-exit_code}" if exit_code < 0 else f"with code {exit_code}"
    return Internal(
        f"the carver ended {how} while it read the model{told}",
        hint="keep the model file and report this; it ended no other program",
    )


def complaint_in(pipe: int) -> str:
    """The last line that libraries wrote, from the first COMPLAINT_BYTES_MAX that they did."""
    os.set_blocking(pipe, False)
    try:
        said = os.read(pipe, COMPLAINT_BYTES_MAX)
    except BlockingIOError:
        return ""
    lines = said.decode(errors="replace").strip().splitlines()
    return "".join(each for each in lines[-1][:400] if each.isprintable()) if lines else ""
