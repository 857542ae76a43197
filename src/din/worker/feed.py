"""One feeder of a worker (the agent, or a gateway by hand-over): its socket, its arena, its slots.

What a feeder says is checked as strictly as what a worker says: a wrong offset is a failed request,
never a read outside the region.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Sequence
from typing import Final

import msgspec

from din.domain.malformed import MALFORMED
from din.domain.tensor import (
    BYTES,
    DTYPE_BYTES,
    RANK_MAX,
    TENSOR_ALIGNMENT_BYTES,
    TensorMeta,
    TensorSpec,
    check_tensor,
    nbytes_of,
)
from din.errors import BadTensor, Busy, DinError, SpoiledTensor, TooLarge, UsageError
from din.execution.allocator import Allocator, Slot
from din.wire.worker import (
    MESSAGE_BYTES_MAX,
    ArenaLayout,
    Attach,
    Compute,
    ComputeFailed,
    FeederMessage,
    Placed,
    Release,
    WorkerMessage,
)

MESSAGE_CHARACTERS_MAX: Final = 2000

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(FeederMessage)


class Feed:
    """A feeder's channel as the worker sees it."""

    def __init__(self, sock: socket.socket, memory: mmap.mmap, layout: ArenaLayout) -> None:
        sock.setblocking(True)
        self.sock = sock
        self.memory = memoryview(memory)
        self.layout = layout
        self.is_open = True
        self._outputs = Allocator(layout.arena_bytes - layout.input_bytes)
        self._slots: dict[int, list[Slot]] = {}
        self._buffer = bytearray(MESSAGE_BYTES_MAX + 1)
        self._view = memoryview(self._buffer)

    def receive(self, flags: int = 0) -> FeederMessage | None:
        """The next message; None when the feeder has gone or talks nonsense (`is_open` is False
        then) or, with MSG_DONTWAIT, when there is none."""
        try:
            size = self.sock.recv_into(self._buffer, 0, flags)
        except BlockingIOError:
            return None
        except OSError:
            size = 0
        if not 0 < size <= MESSAGE_BYTES_MAX:
            self.close()
            return None
        try:
            return _DECODER.decode(self._view[:size])
        except MALFORMED:
            self.close()
            return None

    def send(self, message: WorkerMessage) -> None:
        """Send, or close when the feeder has gone. Raises TooLarge over the message limit."""
        data = _ENCODER.encode(message)
        if len(data) > MESSAGE_BYTES_MAX:
            raise TooLarge(
                f"the answer's header has {len(data)} bytes, over {MESSAGE_BYTES_MAX}",
                hint="ask for fewer outputs at once",
            )
        try:
            self.sock.send(data, socket.MSG_NOSIGNAL)
        except OSError:
            self.close()

    def fail(self, ticket: int, error: DinError) -> None:
        """Report a failed request; every slot of the ticket is free again."""
        self.release(ticket)
        self.send(
            ComputeFailed(
                ticket,
                error.code,
                error.message[:MESSAGE_CHARACTERS_MAX],
                not isinstance(error, UsageError),
                error.hint[:MESSAGE_CHARACTERS_MAX],
                error.tensor if isinstance(error, SpoiledTensor) else "",
            )
        )

    def close(self) -> None:
        """Forget the feeder; repeating it is harmless."""
        self.is_open = False
        self.sock.close()

    def check_inputs(
        self, order: Compute, specs: dict[str, TensorSpec], symbols: dict[str, int]
    ) -> None:
        """Hold the inputs against the specs and the region. Raises BadTensor."""
        names = {placed.meta.name for placed in order.inputs}
        if names != specs.keys() or len(order.inputs) != len(specs):
            raise BadTensor(
                f"inputs are {', '.join(sorted(names)) or 'none'}, "
                f"but {', '.join(sorted(specs)) or 'none'} are needed",
                hint="give each input once",
            )
        for placed in order.inputs:
            check_tensor(specs[placed.meta.name], placed.meta, symbols)
            self._check_place(placed)
        self._check_compressed([each.meta for each in order.inputs if each.meta.compression])

    def allocate(self, ticket: int, nbytes: int) -> int:
        """Offset of a new slot in the output region. Raises TooLarge, or Busy when released
        outputs would make room."""
        slot = self._outputs.allocate(nbytes)
        if slot is None:
            raise self._refusal(nbytes)
        self._slots.setdefault(ticket, []).append(slot)
        return self.layout.input_bytes + slot.offset

    def release(self, ticket: int) -> None:
        """Free all slots of a ticket; an unknown ticket has none."""
        for slot in self._slots.pop(ticket, ()):
            self._outputs.free(slot)

    def handle(self, message: Release | Attach) -> None:
        """Perform what a feeder says beside orders."""
        if isinstance(message, Release):
            self.release(message.ticket)
            return
        for ticket in [each for each in self._slots if each >> 32 != message.session]:
            self.release(ticket)

    def _refusal(self, nbytes: int) -> DinError:
        if self._outputs.could_ever_fit(nbytes):
            return Busy(f"{nbytes} bytes of output must wait until earlier outputs are released")
        return TooLarge(
            f"an output of {nbytes} bytes does not fit the output region of "
            f"{self._outputs.size_bytes} bytes",
            hint="raise the node's arena size, or make the model's output smaller",
        )

    def _check_compressed(self, metas: Sequence[TensorMeta]) -> None:
        """Decompressed they must have room where they would have lain as they were."""
        nbytes = sum(nbytes_of(meta.dtype, meta.shape) for meta in metas)
        if nbytes > self.layout.input_bytes:
            names = ", ".join(repr(meta.name) for meta in metas[:4])
            raise TooLarge(
                f"compressed inputs ({names}) of {nbytes} bytes in all do not fit the input region "
                f"of {self.layout.input_bytes} bytes",
                hint="send a smaller batch",
            )

    def _check_place(self, placed: Placed) -> None:
        meta, offset = placed.meta, placed.offset
        is_inside = (
            offset >= 0 and meta.nbytes >= 0 and offset + meta.nbytes <= self.layout.input_bytes
        )
        if not is_inside or offset % TENSOR_ALIGNMENT_BYTES or not is_well_formed(meta):
            raise BadTensor(
                f"input {meta.name!r} of {meta.nbytes} bytes at offset {offset} is not a tensor "
                f"inside the input region of {self.layout.input_bytes} bytes"
            )


def is_well_formed(meta: TensorMeta) -> bool:
    """Whether dtype and shape are such as an array can have."""
    has_word = meta.dtype == BYTES or meta.dtype in DTYPE_BYTES
    return has_word and len(meta.shape) <= RANK_MAX and all(size >= 0 for size in meta.shape)
