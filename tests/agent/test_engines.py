"""What a node offers of its engines, before and after they were asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from din.agent import engines
from din.agent.engines import REPEAT_EVERY_MS, Engines
from din.agent.profile import make_profile
from din.backends.registry import BACKENDS
from din.config import NodeConfig
from din.domain.engine import EngineFacts
from din.errors import UsageError
from din.system.identity import Identity
from din.wire.messages import AnyMessage, EngineNews
from din.wire.registration import encode_registration

PROFILE = make_profile(NodeConfig(name="edge"), Identity(node_id="a1" * 8, session=1), None, ())

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Play:
    def __init__(self, folder: Path, *wanted: str) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.told: list[EngineNews] = []
        self.is_heard = True
        self.engines = Engines(wanted, folder, self.report, self.tell)

    def report(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts))

    def tell(self, message: AnyMessage) -> bool:
        assert isinstance(message, EngineNews)
        self.told.append(message)
        return self.is_heard


async def test_what_din_depends_on_is_offered_until_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(tmp_path)
    assert play.engines.names == ("onnxruntime",)
    assert play.engines.shown(PROFILE, "hall").versions["onnxruntime"].startswith("1.")

    async def broken(names: Any, **_: Any) -> dict[str, EngineFacts]:
        return {each: EngineFacts(backend=each, trouble="SIGILL ended it") for each in names}

    monkeypatch.setattr(engines, "ask_engines", broken)
    assert await play.engines.ask("board")
    assert play.engines.shown(PROFILE, "hall").backends == ()
    assert "onnxruntime" not in play.engines.shown(PROFILE, "hall").versions
    assert ("engine_not_usable", "SIGILL ended it") in [
        (event, facts["reason"]) for event, facts in play.lines
    ]


async def test_an_operator_names_the_only_engines_that_are_offered(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'onnxruntme' is not known"):
        Play(tmp_path, "onnxruntme")
    play = Play(tmp_path, "onnxruntime")
    assert not await play.engines.ask("board")
    assert play.engines.names == ("onnxruntime",)


async def test_the_gateway_is_told_at_once_after_asking_and_again_each_minute(
    tmp_path: Path,
) -> None:
    play = Play(tmp_path, "onnxruntime")
    play.is_heard = False
    play.engines.look(0)
    play.is_heard = True
    play.engines.look(1)
    play.engines.look(2)
    assert len(play.told) == 2
    await play.engines.ask("board")
    play.engines.look(3)
    play.engines.look(4)
    play.engines.look(3 + REPEAT_EVERY_MS)
    assert len(play.told) == 4
    assert play.told[-1].engines[0].devices


async def test_a_node_with_more_engines_than_a_registration_holds_joins_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def all_there(names: Any, **_: Any) -> dict[str, EngineFacts]:
        return {
            each: EngineFacts(backend=each, version="2026.4.1-" + "x" * 23) for each in BACKENDS
        }

    monkeypatch.setattr(engines, "ask_engines", all_there)
    labels = {f"label-{number}": "of this very hall" for number in range(5)}
    profile = replace(PROFILE, labels=labels, cpu_model="a processor")
    play = Play(tmp_path)
    await play.engines.ask("board")
    assert len(play.engines.names) == len(BACKENDS)
    shown = play.engines.shown(profile, "hall")
    assert 0 < len(shown.backends) < len(BACKENDS)
    assert shown.backends == play.engines.names[: len(shown.backends)]
    assert set(shown.backends) <= set(shown.versions)
    encode_registration(shown, "hall")
    play.engines.shown(profile, "hall")
    told = [facts["engine"] for event, facts in play.lines if event == "engine_not_offered"]
    assert told == [", ".join(play.engines.names[len(shown.backends) :])], "once"
    assert play.engines.shown(PROFILE, "hall").backends[0] == "onnxruntime"
