"""What is told to the service manager, on both kinds of sockets, and when nothing is."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from din.system.notify import ServiceManager
from tests.road.manager import Manager


@pytest.fixture(params=["abstract", "path"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path / "notify" if request.param == "path" else None) as made:
        yield made


def test_readiness_stop_and_reload_are_told_in_the_managers_words(manager: Manager) -> None:
    told = ServiceManager(manager.variables())
    assert told.is_there
    told.ready("serves\nhttp://x")
    assert manager.waiting() == [(os.getpid(), {"READY": "1", "STATUS": "serves http://x"})]
    before_us = time.monotonic_ns() // 1000
    told.reloading()
    (heard,) = manager.waiting()
    assert heard.facts["RELOADING"] == "1"
    assert before_us <= int(heard.facts["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    told.stopping()
    assert manager.waiting()[0].facts == {"STOPPING": "1", "STATUS": "stopping"}
    told.status("serves again")
    assert manager.waiting() == []


def test_a_status_is_sent_when_it_changes(manager: Manager) -> None:
    told = ServiceManager(manager.variables())
    for text in ("one node", "one node", "two nodes"):
        told.status(text)
    assert [each.facts["STATUS"] for each in manager.waiting()] == ["one node", "two nodes"]
    told.status("x" * 5000)
    assert len(manager.waiting()[0].facts["STATUS"]) == 200


def test_children_inherit_nothing_of_the_manager(manager: Manager) -> None:
    environment = {**manager.variables(4.0), "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    told = ServiceManager(environment)
    assert environment == {"HOME": "/"}
    assert told.watchdog_s == 4.0


@pytest.mark.parametrize(
    "changed",
    [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "-3"}, {"WATCHDOG_USEC": "²"}, {"NOTIFY_SOCKET": ""}],
)
def test_a_watchdog_that_is_not_ours_or_makes_no_sense_is_none(changed: dict[str, str]) -> None:
    given = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "4000000"}
    assert ServiceManager({**given, **changed}).watchdog_s == 0.0


@pytest.mark.parametrize(
    "address", ["", "@nobody-listens-here", "/nowhere/at/all", "/" + "x" * 300]
)
def test_without_a_manager_nothing_happens(address: str) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": address} if address else {})
    assert told.is_there == bool(address)
    told.ready("serves")
    told.reloading()
    told.stopping()


def test_signs_of_life_come_from_the_loop_and_end_with_it(manager: Manager) -> None:
    told = ServiceManager(manager.variables(0.02))

    async def live() -> None:
        alive = asyncio.ensure_future(told.keep_told(lambda: "well"))
        await asyncio.to_thread(manager.hear, "WATCHDOG")
        await asyncio.to_thread(manager.hear, "WATCHDOG")
        manager.waiting()
        time.sleep(0.1)  # noqa: ASYNC251 (a loop that stands still is what is tried)
        assert manager.waiting() == []
        await asyncio.to_thread(manager.hear, "WATCHDOG")
        alive.cancel()

    asyncio.run(live())


def test_a_readiness_that_was_not_heard_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "late"
    told = ServiceManager({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "20000"})
    told.ready("early")

    async def live(manager: Manager) -> None:
        alive = asyncio.ensure_future(told.keep_told(lambda: "late"))
        heard = await asyncio.to_thread(manager.hear, "READY")
        assert heard.facts["STATUS"] == "late"
        alive.cancel()

    with Manager(path) as manager:
        asyncio.run(live(manager))


def test_a_manager_that_reads_nothing_holds_nobody_for_ever(manager: Manager) -> None:
    told = ServiceManager(manager.variables())
    for number in range(12):  # the kernel keeps ten datagrams here
        told.status(f"status {number}")
    assert manager.waiting()
