"""Datagrams over loopback: who is answered, and what silence does."""

from __future__ import annotations

import asyncio
import socket

import pytest

from din.errors import Conflict, Unreachable
from din.transport import datagram as module
from din.transport.datagram import (
    DATAGRAMS_PER_TURN_MAX,
    DatagramServer,
    datagram_caller,
)
from din.transport.datagram_calls import SingleCalls, calls_for

HOST = "127.0.0.1"


@pytest.fixture(
    autouse=True, params=[SingleCalls, calls_for], ids=["call for each", "call for all"]
)
def _calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calls_for", request.param)


def test_what_is_answered_comes_back_and_the_rest_is_silence() -> None:
    async def main() -> list[bytes]:
        heard: list[bytes] = []
        done = asyncio.Event()

        def hear(datagram: bytes) -> None:
            heard.append(datagram)
            done.set()

        server = DatagramServer(HOST, 0, lambda each: each.upper() if each != b"no" else None)
        caller = await datagram_caller(HOST, server.port, hear)
        caller.send(b"no")
        caller.send(b"yes")
        async with asyncio.timeout(10):
            await done.wait()
        caller.close()
        server.close()
        return heard

    assert asyncio.run(main()) == [b"YES"]


def test_all_that_came_together_is_answered_in_its_order_and_others_get_a_turn_between() -> None:
    count = DATAGRAMS_PER_TURN_MAX * 3 + 1
    turns: list[int] = []

    async def main() -> list[bytes]:
        heard: list[bytes] = []
        answered: list[bytes] = []
        done = asyncio.Event()

        def hear(datagram: bytes) -> None:
            heard.append(datagram)
            if len(heard) == count:
                done.set()

        def answer(datagram: bytes) -> bytes:
            answered.append(datagram)
            if len(answered) % DATAGRAMS_PER_TURN_MAX == 1:
                asyncio.get_running_loop().call_soon(lambda: turns.append(len(answered)))
            return datagram

        server = DatagramServer(HOST, 0, answer)
        caller = await datagram_caller(HOST, server.port, hear)
        for number in range(count):
            caller.send(b"%d" % number)
        async with asyncio.timeout(30):
            await done.wait()
        caller.close()
        server.close()
        return heard

    assert asyncio.run(main()) == [b"%d" % number for number in range(count)]
    assert turns == [DATAGRAMS_PER_TURN_MAX * each for each in (1, 2, 3)] + [count]


def test_a_caller_outlives_a_port_that_is_closed() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind((HOST, 0))
            port = taken.getsockname()[1]
        caller = await datagram_caller(HOST, port, lambda _: None)
        refusals: list[str] = []
        for _ in range(5):
            try:
                caller.send(b"x")
            except Unreachable as error:
                refusals.append(error.message)
            await asyncio.sleep(0.01)
        caller.close()
        assert all("refused" in each for each in refusals)

    asyncio.run(main())


def test_a_port_in_use_is_named() -> None:
    async def main() -> None:
        first = DatagramServer(HOST, 0, lambda _: None)
        try:
            with pytest.raises(Conflict, match=f"UDP port {first.port}"):
                DatagramServer(HOST, first.port, lambda _: None)
        finally:
            first.close()

    asyncio.run(main())
