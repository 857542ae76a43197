"""One socket of a link: reads frames, writes queued ones, and says how it ended.

Ordering holds inside a lane only. All calls and callbacks in the loop's thread. A lane tells its
owner about its end once, in a later turn of the loop, never from inside a call of the owner.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from din.errors import DinError
from din.transport.limits import LinkLimits
from din.transport.meter import DATED_BYTES_MIN, BodyMeter
from din.transport.outbox import CHUNK_BYTES_MAX, VIEWS_MAX, OnSent, Outbox
from din.transport.reader import FrameReader
from din.transport.sockets import SocketLike, host_of, reason_of, receive, send
from din.transport.tls_socket import RECORD_BYTES, TlsSocket
from din.wire.frame import Unknown
from din.wire.messages import AnyMessage

END_OF_FILE: Final = "the peer closed the connection"
END_IN_FRAME: Final = "the peer closed the connection in the middle of a frame"
HELD_DESCRIPTORS_MAX: Final = 64
"""Received, waiting for the frame that they belong to."""

_SCRATCH: Final = memoryview(bytearray(64 * 1024))
"""Bytes that nobody wants are received into here."""


class LaneOwner(Protocol):
    """Who gets a lane's frames: first a handshake, then a link."""

    def lane_place(self, lane: Lane, message: AnyMessage, nbytes: int) -> memoryview | None:
        """See LinkHandler.place_body."""
        ...

    def lane_message(
        self, lane: Lane, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        """One frame; the descriptors are the owner's."""
        ...

    def lane_abandoned(self, lane: Lane, message: AnyMessage, view: memoryview) -> None:
        """The lane ended in the middle of this body."""
        ...

    def lane_skipped(self, lane: Lane, kind: str) -> None:
        """A frame of an unknown kind was passed over."""
        ...

    def lane_ended(self, lane: Lane, reason: str) -> None:
        """No frame comes any more. Not called after `close`."""
        ...


class Lane:
    """A socket that speaks frames. Starts paused."""

    def __init__(
        self, sock: SocketLike, owner: LaneOwner, limits: LinkLimits, *, is_local: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._is_more_due = False
        self._owner = owner
        self._is_local = is_local
        self._reader = FrameReader(self, limits)
        self._reader.is_paused = True
        self._outbox = Outbox()
        self._descriptors: deque[int] = deque()
        self._is_writing = False
        self._is_finishing = False
        self._has_ended = False
        self._is_broken = False
        self._meter = BodyMeter()
        self.is_closed = False
        self.received_at = self._loop.time()

    @property
    def local_host(self) -> str:
        """Our own address on this socket; empty on a Unix socket or when it is gone."""
        return self._host(self._socket.getsockname)

    @property
    def peer_host(self) -> str:
        """The peer's address on this socket, likewise."""
        return self._host(self._socket.getpeername)

    @property
    def mib_per_second(self) -> float | None:
        """How fast large bodies came of late; None = not measured, as on a Unix socket."""
        return self._meter.pace.mib_per_second(self._loop.time() * 1000)

    @property
    def queued_bytes(self) -> int:
        """Not yet taken by the kernel."""
        return self._outbox.queued_bytes

    @property
    def queued_frames(self) -> int:
        """Not yet wholly taken by the kernel."""
        return len(self._outbox)

    @property
    def is_reading(self) -> bool:
        """Whether bytes still go where they belong."""
        return not (self.is_closed or self._is_finishing or self._has_ended)

    def hand_over(self, owner: LaneOwner) -> None:
        """Give the lane to another owner; done while paused."""
        self._owner = owner

    def pause(self) -> None:
        """Deliver nothing more until `resume`."""
        if not self._reader.is_paused:
            self._reader.is_paused = True
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        """Deliver frames; those already here come in this call."""
        if self.is_closed or not self._reader.is_paused:
            return
        self._reader.is_paused = False
        self._loop.add_reader(self._socket.fileno(), self._on_readable)
        self._guarded_parse()
        if self._tls is not None:
            self._read_on(self._tls)

    def put(
        self,
        parts: list[memoryview],
        nbytes: int,
        fds: Sequence[int] = (),
        on_sent: OnSent | None = None,
    ) -> None:
        """Write what the kernel takes of a frame of `nbytes` now and queue the rest. `on_sent`
        comes once: inside this call when the kernel took it all, else in a later turn."""
        if self.is_closed or self._has_ended or self._is_finishing or self._is_broken:
            if on_sent is not None:
                self._loop.call_soon(on_sent, False)
            return
        is_small = nbytes <= CHUNK_BYTES_MAX and len(parts) <= VIEWS_MAX
        if is_small and not self._is_writing and not fds:
            self._write_at_once(parts, nbytes, on_sent)
            return
        self._outbox.put(parts, nbytes, [os.dup(each) for each in fds], on_sent)
        if not self._is_writing:
            self._write()

    def finish(self) -> None:
        """Write what is queued, then end our direction; what comes is thrown away from now on."""
        if self.is_closed or self._is_finishing:
            return
        self._is_finishing = True
        self._reader.is_stopped = True
        self._abandon()
        if not self._has_ended:
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
        if not self._is_writing:
            self._shut_write()

    def close(self) -> None:
        """End at once: queued frames are given up, a half-received body is abandoned."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._abandon()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._forget_queued()

    # FrameSink.

    def place(self, message: AnyMessage, nbytes: int) -> memoryview | None:
        """See FrameSink."""
        view = self._owner.lane_place(self, message, nbytes)
        if nbytes >= DATED_BYTES_MIN and not self._is_local and self.is_reading:
            left = nbytes - self._reader.buffered_bytes - (RECORD_BYTES if self._tls else 0)
            self._meter.begin(left, self._socket.fileno(), self._loop.time() * 1000)
        return view

    def take(
        self, message: AnyMessage | Unknown, body: memoryview | None, descriptor_count: int
    ) -> None:
        """See FrameSink."""
        if self._meter.is_running:
            self._meter.end(self._loop.time() * 1000)
        if descriptor_count > len(self._descriptors):
            self._end(f"a frame announces {descriptor_count} descriptors, but "
                      f"{len(self._descriptors)} came")  # fmt: skip
            if body is not None and not isinstance(message, Unknown):
                self._owner.lane_abandoned(self, message, body)
            return
        fds: tuple[int, ...] = ()
        if descriptor_count:
            fds = tuple(self._descriptors.popleft() for _ in range(descriptor_count))
        if isinstance(message, Unknown):
            for each in fds:
                os.close(each)
            self._owner.lane_skipped(self, message.kind)
        else:
            self._owner.lane_message(self, message, body, fds)

    # Inside.

    def _host(self, name: Callable[[], Any]) -> str:
        if self._is_local or self.is_closed:
            return ""
        try:
            return host_of(name())
        except OSError:
            return ""

    def _on_readable(self) -> None:
        if self._is_finishing:
            self._drain()
            return
        self.received_at = self._loop.time()
        self._receive(is_local=self._is_local)
        if self._reader.is_in_body and self.is_reading:
            # It mostly lies in the socket already, and descriptors come before it: another turn
            # of the loop would cost more than asking.
            self._receive(is_local=False)
        if self._tls is not None:
            self._read_on(self._tls)

    def _read_on(self, tls: TlsSocket) -> None:
        """No descriptor becomes readable for bytes that are decrypted already."""
        if tls.has_more and not self._is_more_due:
            self._is_more_due = True
            self._loop.call_soon(self._on_more)

    def _on_more(self) -> None:
        self._is_more_due = False
        if self.is_reading and not self._reader.is_paused:
            self._on_readable()

    def _receive(self, *, is_local: bool) -> None:
        try:
            nbytes, fds = receive(self._socket, self._reader.room(), is_local=is_local)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(reason_of(error))
            return
        if nbytes == 0:
            self._end(END_OF_FILE if self._reader.is_between_frames else END_IN_FRAME)
            return
        if fds:
            self._descriptors.extend(fds)
        self._guarded_parse(nbytes)
        if len(self._descriptors) > HELD_DESCRIPTORS_MAX:
            self._end(f"over {HELD_DESCRIPTORS_MAX} descriptors came without their frames")

    def _guarded_parse(self, nbytes: int = 0) -> None:
        try:
            if nbytes:
                self._reader.received(nbytes)
            else:
                self._reader.parse()
        except DinError as error:
            self._end(error.message)

    def _drain(self) -> None:
        try:
            nbytes, fds = receive(self._socket, _SCRATCH, is_local=self._is_local)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(reason_of(error))
            return
        for each in fds:
            os.close(each)
        if nbytes == 0:
            self._end(END_OF_FILE)

    def _write_at_once(self, parts: list[memoryview], nbytes: int, on_sent: OnSent | None) -> None:
        """A frame that finds the queue empty enters it only when the kernel leaves a rest."""
        taken, fault = 0, None
        try:
            taken = send(self._socket, parts, ())
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            fault = error
        if taken == nbytes:
            if on_sent is not None:
                on_sent(True)
            return
        self._outbox.put(parts, nbytes, [], on_sent)
        if fault is not None:
            self._give_up_writing(fault)
            return
        if taken:
            self._outbox.written(taken)
        self._watch_writable()

    def _write(self) -> None:
        views, descriptors = self._outbox.next_views()
        done: list[OnSent] = []
        try:
            done = self._outbox.written(send(self._socket, views, descriptors))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._give_up_writing(error)
            return
        for on_sent in done:
            on_sent(True)
        self._watch_writable()

    def _give_up_writing(self, error: OSError) -> None:
        """What the peer said before it went is still read, perhaps a Bye; the end follows it."""
        self._is_broken = True
        self._loop.remove_writer(self._socket.fileno())
        self._is_writing = False
        self._forget_queued()
        if self._reader.is_paused or self._is_finishing:
            self._end(reason_of(error))

    def _forget_queued(self) -> None:
        for on_sent in self._outbox.clear():
            self._loop.call_soon(on_sent, False)

    def _watch_writable(self) -> None:
        if self.is_closed or self._has_ended:
            return
        wanted = len(self._outbox) > 0
        if wanted and not self._is_writing:
            self._loop.add_writer(self._socket.fileno(), self._write)
        elif not wanted and self._is_writing:
            self._loop.remove_writer(self._socket.fileno())
        self._is_writing = wanted
        if not wanted and self._is_finishing:
            self._shut_write()

    def _shut_write(self) -> None:
        with suppress(OSError):  # the peer may be gone already; its end of file says so
            self._socket.shutdown(socket.SHUT_WR)

    def _abandon(self) -> None:
        cut = self._reader.stop()
        if cut is not None:
            self._owner.lane_abandoned(self, *cut)

    def _end(self, reason: str) -> None:
        if self._has_ended or self.is_closed:
            return
        self._has_ended = True
        self._reader.is_stopped = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._loop.call_soon(self._tell_end, reason)

    def _tell_end(self, reason: str) -> None:
        if not self.is_closed:
            self._owner.lane_ended(self, reason)
