"""What a node finds out of the servers behind it, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from random import Random
from typing import Any

import pytest

from din.agent import foreign
from din.agent.foreign import ForeignServers
from din.agent.foreign_settings import settings_of
from din.config_forms import ForeignSetting
from din.domain.foreign import backends_of
from din.errors import Unavailable, UsageError
from din.transport.http_client import HttpClient
from din.wire.messages import Foreign
from tests.foreign.stand_in import as_json, stand_in, tensor


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LOOK_S", 0.01)
    monkeypatch.setattr(foreign, "BACKOFF", foreign.Backoff(base_ms=5, cap_ms=20))


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*words: Any, **named: Any) -> None:
        asyncio.run(test(*words, **named))

    return run


class Watched:
    """Servers, and what was told of them."""

    def __init__(self, *settings: ForeignSetting | str) -> None:
        self.told: list[Foreign] = []
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.servers = ForeignServers(
            settings_of(settings),
            connect=partial(HttpClient, is_insecure=False),
            tell=self._tell,
            report=lambda event, **facts: self.reports.append((event, facts)),
            random=Random(1),
        )

    def _tell(self, message: Any) -> bool:
        self.told.append(message)
        return True

    async def until(self, ready: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not ready():  # noqa: ASYNC110 (callbacks)
                await asyncio.sleep(0.005)

    @property
    def backends(self) -> tuple[str, ...]:
        return backends_of(self.servers.known)


@asynccontextmanager
async def watched(*settings: ForeignSetting | str) -> AsyncGenerator[Watched]:
    made = Watched(*settings)
    made.servers.tell_all()
    made.told.clear()
    try:
        yield made
    finally:
        await made.servers.stop()


@in_a_loop
async def test_models_that_a_server_lists_are_offered_and_told_once() -> None:
    with stand_in() as server:
        server.models["other"] = {"inputs": [tensor("a")], "outputs": [tensor("b")]}
        async with watched(server.url) as found:
            await found.until(lambda: found.told)
            assert found.backends == ("oip:m", "oip:other")
            looks = len(server.asked)
            await found.until(lambda: len(server.asked) > looks + 20)
            assert len(found.told) == 1, "what is the same is not told again"
            found.servers.tell_all()
            assert found.told[1] == found.told[0]
            told = found.told[0].servers[0]
            assert (told.url, told.name, told.version) == (server.url, "stand-in", "1")


@in_a_loop
async def test_named_models_alone_are_offered_and_asked_for() -> None:
    with stand_in() as server:
        server.models["other"] = server.models["m"]
        async with watched(ForeignSetting(url=server.url, models=("m", "nope"))) as found:
            await found.until(lambda: found.told)
            assert found.backends == ("oip:m",)
            assert "no model nope" in found.servers.known[0].models[1].reason
            assert not [path for path, _, _ in server.asked if "index" in path]


@in_a_loop
async def test_a_server_that_lists_nothing_says_what_to_do() -> None:
    with stand_in() as server:
        plain = server.answer

        def without_list(path: str, *rest: Any) -> Any:
            if path.endswith("index"):
                return as_json({"error": "not supported"}, 404)
            return plain(path, *rest)

        server.answer = without_list  # type: ignore[method-assign]
        async with watched(server.url) as found:
            await found.until(lambda: found.told)
            assert "name them in the node's settings: models" in found.told[-1].servers[0].reason


@in_a_loop
async def test_a_server_goes_and_comes_back() -> None:
    with stand_in() as server:
        async with watched(server.url) as found:
            await found.until(lambda: found.backends)
            server.live = as_json({"error": "stopping"}, 503)
            await found.until(lambda: not found.backends)
            assert "HTTP 503: stopping" in found.told[-1].servers[0].reason
            assert found.told[-1].servers[0].models, "what it had is still known"
            with pytest.raises(Unavailable, match="stopping"):
                await found.servers.options("oip:m")
            server.live = (200, {}, b"")
            await found.until(lambda: found.backends)
            assert [event for event, _ in found.reports] == [
                "foreign_server_found",
                "foreign_server_lost",
                "foreign_server_found",
            ]


@in_a_loop
async def test_a_model_that_is_not_ready_is_not_offered() -> None:
    with stand_in() as server:
        async with watched(server.url) as found:
            await found.until(lambda: found.backends)
            server.is_ready = False
            await found.until(lambda: not found.backends)
            assert "not ready: HTTP 503" in found.told[-1].servers[0].models[0].reason
            server.is_ready = True
            await found.until(lambda: found.backends)


@in_a_loop
async def test_one_late_answer_is_no_end() -> None:
    with stand_in() as server:
        async with watched(server.url) as found:
            await found.until(lambda: found.backends)
            answers = iter([as_json({}, 500)])
            plain = server.answer

            def once(path: str, *rest: Any) -> Any:
                return next(answers, None) or plain(path, *rest)

            server.answer = once  # type: ignore[method-assign]
            looks = len(server.asked)
            await found.until(lambda: len(server.asked) > looks + 20)
            assert len(found.told) == 1


@in_a_loop
async def test_a_worker_is_told_where_and_with_which_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with stand_in() as server:
        server.server["extensions"] = ["binary_tensor_data"]
        setting = ForeignSetting(url=server.url, token_file=str(token))
        async with watched(setting) as found:
            await found.until(lambda: found.backends)
            told = await found.servers.options("oip:m")
            assert (told["address"], told["is_binary"], told["token"]) == (
                "127.0.0.1",
                "true",
                "first",
            )
            shown = {name.lower(): text for name, text in server.asked[-1][1].items()}
            assert shown["authorization"] == "Bearer first"
            token.write_text("second")
            assert (await found.servers.options("oip:m"))["token"] == "second"
            assert not [told for told in map(str, found.told) if "second" in told]
            token.unlink()
            await found.until(lambda: not found.backends)
            assert f"token_file {token}: No such file" in found.told[-1].servers[0].reason
            with pytest.raises(Unavailable, match="no server behind this node has it"):
                await Watched().servers.options("oip:m")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("127.0.0.1:8000", "no HTTP URL"),
        ("ftp://127.0.0.1", "no HTTP URL"),
        ("http://127.0.0.1:port", "no URL"),
        ("http://127.0.0.1/?a=b", "no HTTP URL"),
        ("http://user:secret@127.0.0.1", "holds a user or password"),
        ("https://127.0.0.1", "speaks TLS"),
        (ForeignSetting(url="http://127.0.0.1", models=("",)), "a model ''"),
        (
            ForeignSetting(url="http://127.0.0.1", token_file="a", token_env="b"),
            "a token_file and a token_env",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    setting: ForeignSetting | str, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        settings_of((setting,))
    assert "secret" not in caught.value.message


def test_a_server_is_named_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        settings_of(("http://127.0.0.1:8000", "http://127.0.0.1:8000/"))


def test_plain_text_stays_on_this_machine() -> None:
    with pytest.raises(Exception, match="plain text to another machine"):
        Watched("http://192.0.2.1:8000")


@in_a_loop
async def test_what_is_told_fits_into_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MESSAGE_BYTES_MAX", 200)
    with stand_in() as server:
        wide = [tensor(f"input-{number}") for number in range(20)]
        server.models["wide"] = {"inputs": wide, "outputs": [tensor("y")]}
        async with watched(server.url) as found:
            await found.until(lambda: found.told)
            told = {each.name: each.reason for each in found.told[0].servers[0].models}
            assert told["m"] == ""
            assert "tells of no more" in told["wide"]
