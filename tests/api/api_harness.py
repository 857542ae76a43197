"""A real server on a real port, and a raw client that shows every byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from api_fakes import FakeControl, FakeExamination, FakeInference

from din.api.admission import Admission
from din.api.app import build_app
from din.api.limits import FrontLimits
from din.api.serve import HttpServer, bind, serve
from din.api.turn import Front
from din.api.turns import Turns


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def read(self, *, is_head: bool = False) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        if status == 100:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, await self._chunked())
        size = 0 if is_head else int(headers.get("content-length", "0"))
        return Answer(status, headers, await self.reader.readexactly(size))

    async def _chunked(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()
        return body

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        self.send(request(method, path, body, headers))
        return await self.read(is_head=method == "HEAD")

    async def is_closed(self) -> bool:
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(1), 10) == b""
        return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def request(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    fields = {"host": "127.0.0.1"} | (headers or {})
    if body or method in ("POST", "PUT"):
        fields.setdefault("content-length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def until(fact: Callable[[], object]) -> None:
    """Wait for something that nobody announces; the server's own time-out bounds it."""
    while not fact():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class World:
    """Server, fakes, and as many clients as a test opens."""

    def __init__(self, folder: Path) -> None:
        self.inference = FakeInference()
        self.control = FakeControl(folder)
        self.examination = FakeExamination()
        self.clients: list[Client] = []
        self.server: HttpServer
        self.front: Front

    async def client(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=2**22)
        self.clients.append(Client(reader, writer))
        return self.clients[-1]


def asked_in_turn(
    folder: Path, *asked: tuple[Any, ...], limits: FrontLimits | None = None
) -> tuple[list[Any], World]:
    """Ask one after the other on one connection; the answers and the world."""
    answers: list[Any] = []
    worlds: list[World] = []

    async def test(world: World) -> None:
        worlds.append(world)
        client = await world.client()
        answers.extend([await client.ask(*each) for each in asked])

    with_server(folder, test, limits)
    return answers, worlds[0]


def with_server(
    folder: Path,
    test: Callable[[World], Awaitable[None]],
    limits: FrontLimits | None = None,
    admission: Admission | None = None,
    seconds_max: float = 60,
) -> None:
    """Run `test` against a server; everything is closed afterwards."""

    async def run() -> None:
        world = World(folder)
        world.front = Front(Turns(world.inference, world.control), limits, admission)
        app = build_app(
            world.control,
            world.inference,
            world.front.limits,
            examination=world.examination,
        )
        world.server = await serve(app, world.front, bind("127.0.0.1", 0))
        try:
            async with asyncio.timeout(seconds_max):
                await test(world)
        finally:
            for client in world.clients:
                await client.close()
            await world.server.stop(grace_s=1.0)
        assert world.front.buffered_bytes == 0

    asyncio.run(run())
