"""A socket's datagrams by the turn: all that has come, and the answers to them in the same order.

On 64-bit Linux one system call takes in a turn's datagrams and one sends its answers (`recvmmsg`,
`sendmmsg`). Python has no names for them, so they are called through ctypes on memory that is laid
out once. Senders' addresses stay the kernel's bytes: nobody here reads them. Elsewhere each
datagram is a call of its own.

The layout is the kernel's, which glibc repeats. musl declares `int` and padding where the kernel
reads `size_t`: the same bytes in the same places, so these structures serve there too (though musl
makes one call for each datagram of its `sendmmsg`). BSDs that have such calls lay them out
otherwise.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, Protocol

DATAGRAM_BYTES_MAX: Final = 256
"""Longer ones are cut to this, which is more than any receiver here takes."""
DATAGRAMS_PER_TURN_MAX: Final = 64
ADDRESS_BYTES: Final = 28
"""Of IPv6; IPv4 takes 16."""

_ADDRESS_BYTES_OF: Final = {socket.AF_INET: 16, socket.AF_INET6: 28}


class DatagramCalls(Protocol):
    """How a turn's datagrams come in and its answers leave. Neither blocks nor raises."""

    def receive(self) -> list[bytes]:
        """What has come, oldest first, at most DATAGRAMS_PER_TURN_MAX."""
        ...

    def answer(self, answers: Sequence[bytes | None]) -> int:
        """Send to those who were received last, to each its answer of at most DATAGRAM_BYTES_MAX
        bytes, or None. How many the kernel did not take."""
        ...


class SingleCalls:
    """One system call for each datagram: everywhere."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` does not block."""
        self._socket = sock
        self._sources: list[Any] = []

    def receive(self) -> list[bytes]:
        """See DatagramCalls."""
        arrived = list[tuple[bytes, Any]]()
        # An error is nothing more now; what a sender's network says of itself is not ours.
        with suppress(OSError):
            for _ in range(DATAGRAMS_PER_TURN_MAX):
                arrived.append(self._socket.recvfrom(DATAGRAM_BYTES_MAX))
        self._sources = [source for _, source in arrived]
        return [datagram for datagram, _ in arrived]

    def answer(self, answers: Sequence[bytes | None]) -> int:
        """See DatagramCalls."""
        unsent = 0
        for answer, source in zip(answers, self._sources, strict=True):
            if answer is not None:
                try:
                    self._socket.sendto(answer, source)
                except OSError:
                    unsent += 1
        return unsent


class _Piece(ctypes.Structure):
    """`struct iovec`: where bytes lie."""

    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """`struct mmsghdr`: a datagram's address and pieces, and what became of it."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint32),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("length", ctypes.c_uint32),
    )


_MESSAGE_BYTES: Final = ctypes.sizeof(_Message)
_NAMES_BYTES: Final = DATAGRAMS_PER_TURN_MAX * ADDRESS_BYTES

Call = Callable[..., int]
"""`recvmmsg` or `sendmmsg`."""


class _Slots:
    """Memory for a turn's datagrams, and the structures that tell the kernel where it is."""

    def __init__(self, names: ctypes.Array[ctypes.c_char], address_bytes: int) -> None:
        """`names`: where the datagrams' addresses lie, ADDRESS_BYTES apart."""
        count = DATAGRAMS_PER_TURN_MAX
        self._names = names
        self._memory = (ctypes.c_char * (count * DATAGRAM_BYTES_MAX))()
        self._pieces = (_Piece * count)()
        messages = (_Message * count)()
        memory, where = ctypes.addressof(self._memory), ctypes.addressof(names)
        for at, (piece, message) in enumerate(zip(self._pieces, messages, strict=True)):
            piece.address, piece.length = memory + at * DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MAX
            message.name, message.name_bytes = where + at * ADDRESS_BYTES, address_bytes
            message.pieces, message.piece_count = ctypes.addressof(piece), 1
        self._messages = messages
        self.messages_at = ctypes.addressof(messages)
        self.content = memoryview(self._memory).cast("B")
        self.received = _words(messages, "I")[_Message.length.offset // 4 :: _MESSAGE_BYTES // 4]
        """How many bytes came into each slot."""
        self.to_send = _words(self._pieces, "Q")[1::2]
        """How many bytes of each slot are to go."""


class TurnCalls:
    """One system call for all that has come and one for all answers: 64-bit Linux."""

    def __init__(self, sock: socket.socket, receive: Call, send: Call) -> None:
        """`sock` does not block; `receive` and `send` are the C library's."""
        self._socket, self._receive, self._send = sock, receive, send
        address_bytes = _ADDRESS_BYTES_OF[sock.family]
        names = (ctypes.c_char * _NAMES_BYTES)()
        self._in, self._out = _Slots(names, address_bytes), _Slots(names, address_bytes)

    def receive(self) -> list[bytes]:
        """See DatagramCalls."""
        slots, size, descriptor = self._in, DATAGRAM_BYTES_MAX, self._socket.fileno()
        count = self._receive(descriptor, slots.messages_at, DATAGRAMS_PER_TURN_MAX, 0, None)
        if count <= 0:
            return []  # nothing more now, or what a sender's network says of itself
        came = slots.content[: count * size].tobytes()
        lengths = slots.received[:count].tolist()
        slots_at = range(0, len(came), size)
        return [came[at : at + long] for at, long in zip(slots_at, lengths, strict=True)]

    def answer(self, answers: Sequence[bytes | None]) -> int:
        """See DatagramCalls."""
        content, to_send = self._out.content, self._out.to_send
        unsent, first = 0, 0
        for number, answer in enumerate(answers):
            if answer is None:
                unsent += self._send_from(first, number)
                first = number + 1
                continue
            at, length = number * DATAGRAM_BYTES_MAX, len(answer)
            assert length <= DATAGRAM_BYTES_MAX, "an answer that no datagram here holds"
            content[at : at + length] = answer
            to_send[number] = length
        return unsent + self._send_from(first, len(answers))

    def _send_from(self, first: int, end: int) -> int:
        """Send what is in the slots from `first` to before `end`; how many did not go. The kernel
        stops at one that it does not take and fails when it is asked again: that one is given up.
        """
        unsent = 0
        while first < end:
            messages_at = self._out.messages_at + first * _MESSAGE_BYTES
            sent = self._send(self._socket.fileno(), messages_at, end - first, 0)
            if sent > 0:
                first += sent
            else:
                unsent, first = unsent + 1, first + 1
        return unsent


def calls_for(sock: socket.socket) -> DatagramCalls:
    """The fewest system calls that this machine has for a socket that does not block."""
    if sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8:
        library = ctypes.CDLL(None)
        receive, send = (getattr(library, each, None) for each in ("recvmmsg", "sendmmsg"))
        if receive is not None and send is not None:
            send.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
            receive.argtypes = (*send.argtypes, ctypes.c_void_p)
            # Asked for nothing they do nothing, and fail where a sandbox or the kernel lacks them.
            if receive(sock.fileno(), None, 0, 0, None) == send(sock.fileno(), None, 0, 0) == 0:
                return TurnCalls(sock, receive, send)
    return SingleCalls(sock)


def _words(structures: ctypes.Array[Any], form: Literal["I", "Q"]) -> memoryview:
    """Structures as plain numbers, to read or write one field of all at once."""
    plain = (ctypes.c_ubyte * ctypes.sizeof(structures)).from_buffer(structures)
    return memoryview(plain).cast("B").cast(form)
