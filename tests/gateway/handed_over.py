"""The worker's end of a channel that an agent handed over, played by us."""

from __future__ import annotations

import asyncio
import os

import msgspec
from gateway_fakes import EPOCH, NODE_A, settle

from din.domain.tensor import TensorMeta
from din.system.arena import arena_layout, create_arena
from din.system.descriptors import control_pair
from din.wire.messages import Offer
from din.wire.worker import (
    Compute,
    Computed,
    FeederMessage,
    Placed,
)

LAYOUT = arena_layout(8192, 8192)
OUT = LAYOUT.input_bytes
SLICE = 0
KEY = (EPOCH, SLICE, NODE_A)
OUTPUT = TensorMeta("out", "UINT8", (16,), 16)
WORKER_1, WORKER_2 = 1, 2


class Worker:
    """The worker's end of one channel."""

    def __init__(self, worker_id: int, node_id: str = NODE_A) -> None:
        self.worker_id = worker_id
        self.node_id = node_id
        self.ours, self.socket = control_pair()
        self.socket.setblocking(False)
        self.arena = create_arena(LAYOUT)
        self.offer = Offer(EPOCH, SLICE, worker_id, LAYOUT.arena_bytes, LAYOUT.input_bytes)

    def descriptors(self) -> tuple[int, int]:
        return self.ours.detach(), os.dup(self.arena)

    def heard(self) -> list[FeederMessage]:
        found = []
        while True:
            try:
                data = self.socket.recv(70_000)
            except BlockingIOError:
                return found
            if not data:
                return found
            found.append(msgspec.msgpack.decode(data, type=FeederMessage))

    def orders(self) -> list[Compute]:
        return [each for each in self.heard() if isinstance(each, Compute)]

    async def say(self, message: object) -> None:
        self.socket.send(msgspec.msgpack.encode(message))
        await asyncio.sleep(0.005)
        await settle()

    async def answer(self, order: Compute, place: int = 0) -> None:
        await self.say(Computed(order.ticket, (Placed(OUTPUT, OUT + 64 * place),), 250))

    def close(self) -> None:
        self.ours.close()
        self.socket.close()
        if self.arena >= 0:
            os.close(self.arena)
            self.arena = -1
