"""What the confined part of the carver says to its keeper, over a stream: files, then an answer.

    frame = kind (u8) | length (u64, big-endian) | so many bytes
    file  = frame, its bytes in pieces: length (u32) | so many bytes, the last of length 0

A file is answered by its SHA256, 32 bytes; a piece of length 0xFFFFFFFF ends one that was given up.
Nothing is opened by who speaks.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from din.carver.files import Piece
from din.errors import Internal

FILE, ANSWER, ERROR = 1, 2, 3
DIGEST_BYTES: Final = 32
PIECE_BYTES: Final = 1024 * 1024
_HEAD: Final = struct.Struct(">BQ")
_PIECE: Final = struct.Struct(">I")
_GIVEN_UP: Final = 0xFFFFFFFF


class Ended(Exception):
    """Who speaks has stopped in the middle."""


class GivenUp(Exception):
    """Who speaks has no more of this file, and will say why."""


class Speaker:
    """The confined part's end."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def give(self, pieces: Iterable[Piece], nbytes: int) -> str:
        """One file of so many bytes; its SHA256. Raises OSError when the keeper has gone."""
        self._stream.sendall(_HEAD.pack(FILE, nbytes))
        try:
            for piece in pieces:
                if len(piece):
                    self._stream.sendall(_PIECE.pack(len(piece)))
                    self._stream.sendall(piece)
        except Exception:  # of who makes the pieces: the keeper is to hear of it
            self._stream.sendall(_PIECE.pack(_GIVEN_UP))
            raise
        self._stream.sendall(_PIECE.pack(0))
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
        """A file, each piece to be used before the next is asked for. Raises Ended, GivenUp,
        Internal for another size than the announced one."""
        room = memoryview(bytearray(min(nbytes, PIECE_BYTES)))
        left = nbytes
        while piece := self._piece():
            left -= piece
            if left < 0:
                break
            while piece:
                try:
                    count = self._stream.recv_into(room, min(piece, len(room)))
                except OSError as error:
                    raise Ended from error
                if not count:
                    raise Ended
                yield room[:count]
                piece -= count
        if left:
            raise Internal(f"a file of {nbytes} bytes was announced, and it has {nbytes - left}")

    def _piece(self) -> int:
        length = int(_PIECE.unpack(receive(self._stream, _PIECE.size))[0])
        if length == _GIVEN_UP:
            raise GivenUp
        return length

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
