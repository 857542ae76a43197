"""A reload takes up every setting that changed, or names it: none is passed over."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from din.agent.serving import LIVE as NODE_LIVE
from din.bootstrap import gateway as gateway_program
from din.bootstrap.running import LIVE as GATEWAY_LIVE
from din.config import GatewayConfig, NodeConfig
from din.system import reload
from din.system.notify import ServiceManager
from din.system.reload import Reloader

DOCUMENT = Path(__file__).parents[2] / "docs" / "service.md"
PROGRAMS: tuple[tuple[type[GatewayConfig] | type[NodeConfig], frozenset[str]], ...] = (
    (GatewayConfig, GATEWAY_LIVE),
    (NodeConfig, NODE_LIVE),
)
SETTINGS = [(struct, live, name) for struct, live in PROGRAMS for name in struct.__struct_fields__]


@pytest.mark.parametrize(("struct", "live", "name"), SETTINGS)
def test_what_changed_is_taken_up_or_named(
    monkeypatch: pytest.MonkeyPatch, struct: Any, live: frozenset[str], name: str
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    taken: list[Any] = []
    before = struct()
    changed = f"another {name}"

    async def fresh(*_: object) -> Any:
        return msgspec.structs.replace(before, **{name: changed})

    monkeypatch.setattr(reload, "fresh_config", fresh)

    async def once() -> None:
        reloader: Reloader[Any] = Reloader(
            before, live, taken.append, manager=ServiceManager({}), standing=lambda: "",
            report=lambda event, **facts: told.append((event, facts)), environment={},
        )  # fmt: skip
        running = asyncio.ensure_future(reloader.run())
        reloader.ask()
        async with asyncio.timeout(20):
            while not told:  # noqa: ASYNC110
                await asyncio.sleep(0)
        running.cancel()

    asyncio.run(once())
    facts = dict(told)
    if name in live:
        assert facts["reloaded"]["changed"] == name
        assert getattr(taken[0], name) == changed
        assert "reload_warning" not in facts
    else:
        assert facts["reloaded"]["changed"] == "nothing"
        assert facts["reload_warning"]["unchanged"] == name
        assert getattr(taken[0], name) == getattr(before, name)


class Watched:
    """Settings that remember which of them were read."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(GatewayConfig(), name)


def test_a_gateway_reads_every_setting_that_it_says_it_takes_up() -> None:
    watched = Watched()
    effects = SimpleNamespace(artifacts=SimpleNamespace(allow=lambda _: None))
    deployer = SimpleNamespace(idling=SimpleNamespace(unload_ms=0.0))
    models = SimpleNamespace(builder=SimpleNamespace(operators_allowed=()))
    gateway = SimpleNamespace(effects=effects, deployer=deployer, models=models)
    take_up = cast("Any", gateway_program)._take_up
    take_up(gateway, SimpleNamespace(), None, watched)
    assert watched.read | {"log_level", "log_format"} == GATEWAY_LIVE


def test_the_document_names_what_is_taken_up_and_nothing_else() -> None:
    rows = {
        cells[1].strip(): set(re.findall(r"`([a-z_]+)`", cells[2]))
        for line in DOCUMENT.read_text().splitlines()
        if len(cells := line.split("|")) == 4
    }
    for program, live in (("gateway", GATEWAY_LIVE), ("node", NODE_LIVE)):
        assert rows["both"] | rows[program] == live
