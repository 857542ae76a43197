"""Connections that are carried into a container."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from din.runner.forward import carry

pytestmark = pytest.mark.anyio
SAID = bytes(range(256)) * 16_384
"""4 MiB: more than fits into any one read."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that says back what it hears."""
    writer.write(await reader.readexactly(len(SAID)))
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("dial_s", [0.0, 0.3])
async def test_what_is_said_before_the_inner_connection_is_made_arrives_whole(
    monkeypatch: pytest.MonkeyPatch, dial_s: float
) -> None:
    server = await asyncio.start_server(told, "127.0.0.1", 0, limit=1 << 24)
    port = server.sockets[0].getsockname()[1]
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    where = listener.getsockname()
    loop = asyncio.get_running_loop()
    dial = loop.create_connection

    async def slowly(*given: Any, **more: Any) -> Any:
        await asyncio.sleep(dial_s)
        return await dial(*given, **more)

    carrying = asyncio.ensure_future(carry(listener, port))
    await asyncio.sleep(0)
    reader, writer = await asyncio.open_connection(*where)
    monkeypatch.setattr(loop, "create_connection", slowly)
    writer.write(SAID)
    assert await asyncio.wait_for(reader.readexactly(len(SAID)), 30) == SAID
    writer.close()
    carrying.cancel()
    server.close()


async def test_a_connection_ends_at_once_where_nothing_listens_inside() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        where = listener.getsockname()
        carrying = asyncio.ensure_future(carry(listener, port))
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(*where)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        writer.close()
        carrying.cancel()
