"""Watches servers of others behind this node: who is there, what they hold, who can be asked.

    unknown --answers--> up (models, each ready or not) --silent or refuses--> down
    down --answers--> up

What is new goes to the gateway, which places and withdraws slices by it. The tensors go another
way, by workers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from din.agent.foreign_settings import address_of, settings_of, token_of
from din.config import NodeConfig
from din.config_forms import ForeignSetting
from din.domain.foreign import (
    MODELS_MAX,
    ForeignModel,
    ForeignServer,
    model_of,
    trouble_with,
    usable,
)
from din.errors import DinError, Unavailable
from din.flow.backoff import Backoff
from din.foreign.metadata import (
    BINARY,
    INDEX_PATH,
    LIVE_PATH,
    SERVER_PATH,
    ServerSaid,
    error_text,
    model_path,
    read_index,
    read_model,
    read_server,
)
from din.transport.http_client import HttpClient
from din.wire.messages import AnyMessage, Foreign

LOOK_S: Final = 2.0
ANSWER_MS_MAX: Final = 2_000
ANSWER_BYTES_MAX: Final = 1024 * 1024
BACKOFF: Final = Backoff(base_ms=500, cap_ms=10_000)
DOWN_AFTER: Final = 3
"""Looks in a row that fail: one that computes may be late with an answer."""
OK: Final = 200
MESSAGE_BYTES_MAX: Final = 192 * 1024
"""Of what is told of all servers: it goes in the head of a frame."""

Report = Callable[..., None]


class Started(Protocol):
    """Servers that this node starts itself; see `din.agent.containers`."""

    def start(self) -> None:
        """Begin with all of them; repeating it is harmless."""
        ...

    def trouble_of(self, url: str) -> str:
        """Why the server at a URL cannot answer yet; empty when it runs, or is not ours."""
        ...

    def words_of(self, url: str) -> str:
        """What people are told of its container; empty when it has none of ours."""
        ...

    async def stop(self) -> None:
        """Stop every server and wait for it."""
        ...


class Connect(Protocol):
    """Makes a client of a server."""

    def __call__(self, base_url: str, *, answer_bytes_max: int) -> HttpClient:
        """Raises UsageError or Denied for a URL that must not be asked."""
        ...


class _Server:
    """One server and what is known of it."""

    def __init__(self, setting: ForeignSetting, client: HttpClient) -> None:
        self.setting = setting
        self.client = client
        self.address = address_of(setting.url)
        self.said = ServerSaid()
        self.known = ForeignServer(setting.url, reason="it has not answered yet")
        self.failures = 0


class ForeignServers:
    """All servers behind this node. All calls in the loop's thread."""

    def __init__(
        self,
        settings: Sequence[ForeignSetting],
        *,
        connect: Connect,
        tell: Callable[[AnyMessage], bool],
        report: Report,
        random: Random,
        started: Started | None = None,
    ) -> None:
        """Raises UsageError or Denied for a server that must not be asked."""
        self._started = started
        self._servers = [
            _Server(each, connect(each.url, answer_bytes_max=ANSWER_BYTES_MAX)) for each in settings
        ]
        self._tell = tell
        self._report = report
        self._random = random
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def known(self) -> tuple[ForeignServer, ...]:
        """In the order of the settings."""
        return tuple(each.known for each in self._servers)

    async def stop(self) -> None:
        """Look no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.client.close() for each in self._servers))
        if self._started is not None:
            await self._started.stop()

    def tell_all(self) -> None:
        """The gateway has a new link: looking begins with the first one."""
        if not self._tasks:
            if self._started is not None:
                self._started.start()
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._watch(each)) for each in self._servers]
        if self._servers:
            self._tell(Foreign(_within(self.known, MESSAGE_BYTES_MAX)))

    async def options(self, backend: str) -> dict[str, str]:
        """What a worker has to know to ask for a model. Raises Unavailable."""
        model = model_of(backend)
        found = usable(self.known).get(model)
        if found is None:
            why = trouble_with(model, self.known) or "no server behind this node has it"
            raise Unavailable(
                f"model {model!r} cannot be asked for: {why}",
                hint="din node inspect shows the servers behind a node",
            )
        server = next(each for each in self._servers if each.known is found[0])
        return {
            "url": server.setting.url,
            "address": await _looked_up(server),
            "port": str(server.address.port),
            "host": server.address.authority,
            "prefix": server.address.prefix,
            "model": model,
            "server": server.said.name,
            "is_binary": "true" if BINARY in server.said.extensions else "",
            "token": token_of(server.setting, os.environ),
        }

    # Looking.

    async def _watch(self, server: _Server) -> None:
        while True:
            try:
                found = await self._look(server)
                server.failures = 0
            except DinError as error:
                server.failures += 1
                is_down = server.failures >= DOWN_AFTER or bool(server.known.reason)
                found = replace(server.known, reason=error.message) if is_down else server.known
            if self._started is not None:
                found = _with_container(found, self._started)
            if found != server.known:
                self._note(server, found)
            pause_s = LOOK_S
            if server.failures:
                pause_s = BACKOFF.delay_ms(server.failures - 1, self._random) / 1000
            await asyncio.sleep(pause_s)

    def _note(self, server: _Server, found: ForeignServer) -> None:
        before, server.known = server.known, found
        if before.reason != found.reason:
            event = "foreign_server_lost" if found.reason else "foreign_server_found"
            facts = {"reason": found.reason} if found.reason else {"models": len(found.models)}
            self._report(event, url=found.url, server=found.name, version=found.version, **facts)
        else:
            names = [each.name for each in found.models if not each.reason]
            self._report("foreign_models", url=found.url, ready=names[:MODELS_MAX])
        self.tell_all()

    async def _look(self, server: _Server) -> ForeignServer:
        """All of a server as it is now. Raises DinError when it cannot be asked."""
        headers = _headers(server.setting)
        await _asked(server, "GET", LIVE_PATH, headers)
        said = server.said = read_server(await _asked(server, "GET", SERVER_PATH, headers))
        names = server.setting.models
        if not names:
            index = await _asked(server, "POST", INDEX_PATH, headers, b"{}")
            names = read_index(index)
        models = [await self._look_at(server, name, headers) for name in names[:MODELS_MAX]]
        return ForeignServer(server.setting.url, said.name, said.version, tuple(models))

    async def _look_at(
        self, server: _Server, name: str, headers: Mapping[str, str]
    ) -> ForeignModel:
        path = server.address.prefix + model_path(name, "/ready")
        status, _, body = await server.client.request(
            "GET", path, b"", headers, timeout_ms=ANSWER_MS_MAX
        )
        if status != OK:
            known = next((each for each in server.known.models if each.name == name), None)
            reason = f"it is not ready: {error_text(status, body)}"
            return replace(known or ForeignModel(name), reason=reason)
        try:
            return read_model(name, await _asked(server, "GET", model_path(name), headers))
        except Unavailable as error:
            return ForeignModel(name, reason=error.message)


def foreign_servers(
    config: NodeConfig, tell: Callable[[AnyMessage], bool], report: Report, random: Random
) -> ForeignServers:
    """As a node is told. Raises UsageError or Denied."""
    settings = settings_of(config.foreign)
    started: Started | None = None
    if any(each.container is not None for each in settings):
        from din.agent.containers import containers_of

        started = containers_of(settings, config, report, random)
    return ForeignServers(
        settings,
        connect=partial(HttpClient, is_insecure=config.insecure_network),
        tell=tell,
        report=report,
        random=random,
        started=started,
    )


def _with_container(found: ForeignServer, started: Started) -> ForeignServer:
    """The same, where a container that does not run is the reason for everything else."""
    trouble = started.trouble_of(found.url)
    container = started.words_of(found.url)
    return replace(found, reason=trouble or found.reason, container=container)


def _within(servers: tuple[ForeignServer, ...], nbytes_max: int) -> tuple[ForeignServer, ...]:
    """The same, where models for which there is no room tell that instead of their signature."""
    told: list[ForeignServer] = []
    for server in servers:
        models: list[ForeignModel] = []
        for model in server.models:
            nbytes = len(msgspec.msgpack.encode(model))
            if nbytes > nbytes_max:
                reason = "the node tells of no more; name the models that it shall offer"
                models.append(ForeignModel(model.name, reason=reason))
            else:
                nbytes_max -= nbytes
                models.append(model)
        told.append(replace(server, models=tuple(models)))
    return tuple(told)


async def _asked(
    server: _Server, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> bytes:
    """The body of a good answer. Raises DinError."""
    status, _, answer = await server.client.request(
        method, server.address.prefix + path, body, headers, timeout_ms=ANSWER_MS_MAX
    )
    if status == OK:
        return answer
    told = f"{method} {path} answered {error_text(status, answer)}"
    if path == INDEX_PATH:
        raise Unavailable(
            f"it does not list its models ({told}); name them in the node's settings: models"
        )
    raise Unavailable(told)


async def _looked_up(server: _Server) -> str:
    """An address of the host: workers look nothing up. Raises Unavailable."""
    host, port = server.address.host, server.address.port
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"host {host!r} has no address: {error.strerror}") from error
    return str(found[0][4][0])


def _headers(setting: ForeignSetting) -> dict[str, str]:
    """Read at each look, so that a token may be replaced. Raises Unavailable."""
    headers = {"content-type": "application/json"}
    token = token_of(setting, os.environ)
    return {**headers, "authorization": f"Bearer {token}"} if token else headers
