"""What the confined part of the carver says to its keeper, over a stream: files, then an answer.

    frame = kind (u8) | length (u64, big-endian) | so many bytes

A file is answered by its SHA256, 32 bytes. Nothing is opened by who speaks.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from din.carver.files import Piece

FILE, ANSWER, ERROR = 1, 2, 3
DIGEST_BYTES: Final = 32
PIECE_BYTES: Final = 1024 * 1024
_HEAD: Final = struct.Struct(">BQ")


class Ended(Exception):
    """Who speaks has stopped in the middle."""


class Speaker:
    """The confined part's end."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def give(self, pieces: Iterable[Piece], nbytes: int) -> str:
        """One file of so many bytes; its SHA256. Raises OSError when the keeper has gone."""
        self._stream.sendall(_HEAD.pack(FILE, nbytes))
        for piece in pieces:
            self._stream.sendall(piece)
        return receive(self._stream, DIGEST_BYTES).hex()

    def end(self, said: bytes, *, is_error: bool) -> None:
        """The answer, or the error in its stead. Raises OSError when the keeper has gone."""
        self._stream.sendall(_HEAD.pack(ERROR if is_error else ANSWER, len(said)) + said)


class Listener:
    """The keeper's end. Whoever speaks may be under a stranger's command."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def head(self) -> tuple[int, int]:
        """Kind and length of the next frame. Raises Ended."""
        kind, nbytes = _HEAD.unpack(receive(self._stream, _HEAD.size))
        return kind, nbytes

    def whole(self, nbytes: int) -> bytes:
        """What follows a head, at once. Raises Ended."""
        return receive(self._stream, nbytes)

    def pieces(self, nbytes: int) -> Iterator[Piece]:
        """The same in pieces, each to be used before the next is asked for. Raises Ended."""
        room = memoryview(bytearray(min(nbytes, PIECE_BYTES)))
        left = nbytes
        while left:
            try:
                count = self._stream.recv_into(room, min(left, len(room)))
            except OSError as error:
                raise Ended from error
            if not count:
                raise Ended
            yield room[:count]
            left -= count

    def confirm(self, sha256: str) -> None:
        """Say what the file is called. Raises Ended when who speaks has gone."""
        try:
            self._stream.sendall(bytes.fromhex(sha256))
        except OSError as error:
            raise Ended from error


def receive(stream: socket.socket, nbytes: int) -> bytes:
    """So many bytes. Raises Ended."""
    found = bytearray()
    while len(found) < nbytes:
        try:
            part = stream.recv(min(nbytes - len(found), PIECE_BYTES))
        except OSError as error:  # it died with something unread
            raise Ended from error
        if not part:
            raise Ended
        found += part
    return bytes(found)
