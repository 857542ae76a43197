"""When a node tells the service manager that it is ready, and what it says then."""

import asyncio

import pytest

from din.agent import standing
from din.agent.standing import told
from din.system.notify import ServiceManager
from tests.road.manager import Manager


def test_a_node_is_ready_when_it_has_joined_and_says_when_it_is_cut_off() -> None:
    urls = [""]

    async def live(manager: Manager) -> None:
        async with told(ServiceManager(manager.variables(0.02)), lambda: urls[0]):
            first = await asyncio.to_thread(manager.hear, "STATUS")
            assert first.facts == {"STATUS": "not joined: looks for its gateway"}
            urls[0] = "http://g"
            heard = await asyncio.to_thread(manager.hear, "READY")
            assert heard.facts["STATUS"] == "joined http://g"
            urls[0] = ""
            await asyncio.to_thread(manager.hear, "STATUS", "not joined")

    with Manager() as manager:
        asyncio.run(live(manager))
        assert len([each for each in manager.heard if "READY" in each.facts]) == 1


def test_a_node_whose_gateway_is_off_is_ready_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "UNJOINED_S_MAX", 0.05)

    async def live(manager: Manager) -> None:
        async with told(ServiceManager(manager.variables()), lambda: ""):
            heard = await asyncio.to_thread(manager.hear, "READY")
            assert heard.facts["STATUS"] == "not joined: looks for its gateway"

    with Manager() as manager:
        asyncio.run(live(manager))
