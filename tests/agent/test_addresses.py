"""Own addresses: the kernel's news make a node look, and without them it looks now and then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from din.agent import addresses
from din.agent.addresses import OwnAddresses
from din.system.network import AddressWatch, RawInterface

OLD, NEW = "192.168.1.20", "192.168.1.77"
UNIX, LOCAL = "unix:/run/n.sock", "tcp:127.0.0.1:9"


class Machine:
    """One network card, and a kernel that tells of it through one end of a socket pair."""

    def __init__(self) -> None:
        self.card = RawInterface(True, (OLD,))
        self.looks = 0
        self.refusal: OSError | None = None
        self.gone: list[frozenset[str]] = []
        self.reports: list[str] = []
        self.changed = asyncio.Event()
        self.mouth, self.ear = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ear.setblocking(False)
        self.own = OwnAddresses(
            "0.0.0.0", self.on_change, self.report, open_news=self.open_news, watch=self.watch
        )

    def open_news(self) -> socket.socket:
        if self.refusal is not None:
            raise self.refusal
        return self.ear

    def watch(self) -> AddressWatch:
        return AddressWatch(source=self.interfaces)

    def interfaces(self) -> dict[str, RawInterface]:
        self.looks += 1
        return {"eth0": self.card, "docker0": RawInterface(True, ("172.17.0.1",))}

    def on_change(self, gone: frozenset[str]) -> None:
        self.gone.append(gone)
        self.changed.set()

    def report(self, event: str, **facts: object) -> None:
        self.reports.append(event)

    async def change(self) -> None:
        async with asyncio.timeout(20):
            await self.changed.wait()
        self.changed.clear()

    def close(self) -> None:
        self.own.close()
        self.mouth.close()
        self.ear.close()


def play(story: Callable[[Machine], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        machine = Machine()
        try:
            await story(machine)
        finally:
            machine.close()

    asyncio.run(whole())


@pytest.fixture
def never_looks_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "LOOK_S", 3600.0)
    monkeypatch.setattr(addresses, "LOOK_WITH_NEWS_S", 3600.0)


@pytest.mark.usefixtures("never_looks_unasked")
def test_news_of_a_new_address_are_followed_by_one_look() -> None:
    async def story(machine: Machine) -> None:
        machine.own.start("/run/n.sock", 9, "0.0.0.0")
        assert machine.own.current == (UNIX, f"tcp:{OLD}:9", LOCAL)
        machine.card = RawInterface(True, (NEW,))
        for _ in range(5):
            machine.mouth.send(b"address removed, address added")
        await machine.change()
        assert machine.own.current == (UNIX, f"tcp:{NEW}:9", LOCAL)
        assert machine.gone == [frozenset({OLD})]
        assert machine.looks == 2
        machine.card = RawInterface(True, (NEW, OLD))
        machine.mouth.send(b"and again")
        await machine.change()
        assert machine.gone[1:] == [frozenset()]

    play(story)


@pytest.mark.usefixtures("never_looks_unasked")
def test_news_that_change_no_address_are_told_to_nobody() -> None:
    async def story(machine: Machine) -> None:
        machine.own.start("/run/n.sock", 9, "0.0.0.0")
        machine.mouth.send(b"a cable was pulled elsewhere")
        async with asyncio.timeout(20):
            while machine.looks < 2:  # noqa: ASYNC110 - a look has no event
                await asyncio.sleep(0.005)
        assert machine.gone == []

    play(story)


def test_where_news_are_refused_it_looks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "LOOK_S", 0.01)

    async def story(machine: Machine) -> None:
        machine.refusal = OSError(97, "Address family not supported by protocol")
        machine.own.start("/run/n.sock", 9, "0.0.0.0")
        machine.card = RawInterface(True, (NEW,))
        await machine.change()
        assert machine.gone == [frozenset({OLD})]
        assert machine.reports == ["address_news_refused", "addresses_changed"]

    play(story)


def test_with_news_it_looks_now_and_then_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are lost when a kernel has too much to say, and some kernels say nothing."""
    monkeypatch.setattr(addresses, "LOOK_WITH_NEWS_S", 0.01)

    async def story(machine: Machine) -> None:
        machine.own.start("/run/n.sock", 9, "0.0.0.0")
        machine.card = RawInterface(True, (NEW,))
        await machine.change()
        assert machine.own.current[1] == f"tcp:{NEW}:9"

    play(story)


def test_a_socket_of_no_more_use_is_given_up_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "LOOK_S", 0.01)

    def read(_: socket.socket) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(addresses, "read_news", read)

    async def story(machine: Machine) -> None:
        machine.own.start("/run/n.sock", 9, "0.0.0.0")
        machine.mouth.send(b"news")
        async with asyncio.timeout(20):
            while not machine.reports:  # noqa: ASYNC110 - a report has no event
                await asyncio.sleep(0.005)
        assert machine.reports == ["address_news_ended"]
        machine.card = RawInterface(True, (NEW,))
        await machine.change()
        assert machine.gone == [frozenset({OLD})]

    play(story)


def test_a_node_that_only_this_host_dials_watches_nothing() -> None:
    async def story(machine: Machine) -> None:
        own = OwnAddresses(
            "127.0.0.1",
            machine.on_change,
            machine.report,
            open_news=machine.open_news,
            watch=machine.watch,
        )
        own.start("/run/n.sock", 9, "127.0.0.1")
        assert own.current == (UNIX, LOCAL)
        assert machine.looks == 0
        own.close()

    play(story)


@pytest.mark.parametrize(("bound", "told"), [("10.7.7.7", "10.7.7.7"), ("fd00::7", "[fd00::7]")])
def test_a_node_that_listens_on_a_name_tells_what_that_is_bound_to(bound: str, told: str) -> None:
    async def story(machine: Machine) -> None:
        own = OwnAddresses(
            "edge-7.plant",
            machine.on_change,
            machine.report,
            open_news=machine.open_news,
            watch=machine.watch,
        )
        own.start("/run/n.sock", 9, bound)
        assert own.current == (UNIX, f"tcp:{told}:9")
        own.close()

    play(story)
