"""Crashes that a gateway keeps, and requests that end workers."""

from __future__ import annotations

import asyncio

from din.domain.crash import Death
from din.domain.deployment import Epoch
from din.domain.node import NodeId
from din.gateway.telemetry.crashes import CRASHES_PER_NODE_MAX, CUT_OFF_MAX, NODES_MAX, CrashBook

EPOCH = Epoch(1, 1)
NODE = NodeId("a" * 16)
SEGV = Death("crash", "killed by signal 11 (SIGSEGV)", 90)


def test_what_ran_is_put_to_how_it_ended() -> None:
    async def story() -> None:
        book = CrashBook(lambda: 5.0, lambda: "now")
        book.cut_off((EPOCH, 0, NODE), "x FP32[1, 4]")
        death = book.died((EPOCH, 0, NODE), "edge-1", "face", "face/all", SEGV)
        assert death.story() == (
            "killed by signal 11 (SIGSEGV), at most 90 MiB resident, while it computed x FP32[1, 4]"
        )
        (view,) = book.of_node(NODE)
        assert (view.at, view.node, view.slice) == ("now", "edge-1", "face/all")
        assert (view.kind, view.memory_mib_peak, view.running) == ("crash", 90, "x FP32[1, 4]")
        assert book.of_model("face") == (view,)
        assert book.of_model("other") == ()
        again = book.died((EPOCH, 0, NODE), "edge-1", "face", "face/all", SEGV)
        assert not again.running

    asyncio.run(story())


def test_only_crashes_of_this_deployment_since_then_are_found() -> None:
    async def story() -> None:
        now = [0.0]
        book = CrashBook(lambda: now[0], lambda: "now")
        for now[0] in (1.0, 2.0):
            book.died((EPOCH, 0, NODE), "edge-1", "face", "face/all", SEGV)
        book.died((Epoch(2, 2), 0, NODE), "edge-1", "face", "face/all", SEGV)
        assert len(book.since(EPOCH, NODE, 2.0)) == 1
        assert len(book.since(EPOCH, NODE, 0.0)) == 2

    asyncio.run(story())


def test_every_book_has_an_end() -> None:
    async def story() -> None:
        book = CrashBook(lambda: 0.0, lambda: "now")
        for number in range(CUT_OFF_MAX + 1):
            book.cut_off((Epoch(1, number), 0, NODE), "x")
        assert len(book._cut_off) == CUT_OFF_MAX
        for _ in range(CRASHES_PER_NODE_MAX + 1):
            book.died((EPOCH, 0, NODE), "edge-1", "face", "face/all", SEGV)
        assert len(book.of_node(NODE)) == CRASHES_PER_NODE_MAX
        for number in range(NODES_MAX + 1):
            book.died((EPOCH, 0, NodeId(f"{number:016x}")), "e", "face", "face/all", SEGV)
        assert book.of_node(NODE) == ()

    asyncio.run(story())
