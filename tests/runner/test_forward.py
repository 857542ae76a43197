"""Connections that are carried into a container."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from din.runner.forward import carry

pytestmark = pytest.mark.anyio
SAID = bytes(range(256)) * 16_384
"""4 MiB: more than fits into any one read."""
WAIT_S = 30


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that says back what it hears."""
    writer.write(await reader.readexactly(len(SAID)))
    await writer.drain()
    writer.close()


@asynccontextmanager
async def carried(
    port: int,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to what stands for the outside of a container's port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    carrying = asyncio.ensure_future(carry(listener, port))
    await asyncio.sleep(0)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        await asyncio.sleep(0.05)  # the other ends close in their own turns
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)
        listener.close()


@pytest.mark.parametrize("dial_s", [0.0, 0.3])
async def test_what_is_said_before_the_inner_connection_is_made_arrives_whole(
    monkeypatch: pytest.MonkeyPatch, dial_s: float
) -> None:
    server = await asyncio.start_server(told, "127.0.0.1", 0, limit=1 << 24)
    loop = asyncio.get_running_loop()
    dial = loop.create_connection

    async def slowly(*given: Any, **more: Any) -> Any:
        await asyncio.sleep(dial_s)
        return await dial(*given, **more)

    async with server, carried(server.sockets[0].getsockname()[1]) as (reader, writer):
        monkeypatch.setattr(loop, "create_connection", slowly)
        writer.write(SAID)
        assert await asyncio.wait_for(reader.readexactly(len(SAID)), WAIT_S) == SAID


async def test_a_connection_ends_at_once_where_nothing_listens_inside() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with carried(unused.getsockname()[1]) as (reader, _):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), WAIT_S)
