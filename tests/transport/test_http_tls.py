"""The agent's HTTP client over TLS: whom a node that has joined asks, and whom it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tls_machines import CLUSTER, GATEWAY, NODE, OTHER, authority_in, machine

from din.domain.trust import PeerName
from din.errors import Denied, DinError, Unreachable, UsageError
from din.transport.dial import ignore_reports
from din.transport.http_client import HttpClient, fetch
from din.transport.tls import TlsFiles, server_context
from din.transport.tls_identity import TlsIdentity

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


@asynccontextmanager
async def answering(files: TlsFiles) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server with this certificate: its URL, and what it was asked."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(ANSWER)
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    context = server_context(files, is_certificate_required=False)
    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}", heads
    finally:
        listener.close()
        await listener.wait_closed()
        await asyncio.sleep(0.01)


def joined(folder: Path) -> TlsIdentity:
    return TlsIdentity(
        machine(folder / "node", authority_in(folder / "ca"), NODE), CLUSTER, ignore_reports
    )


async def asked(url: str, tls: TlsIdentity | None) -> bytes:
    client = HttpClient(url, tls=tls)
    try:
        return (await client.request("GET", "/"))[2]
    finally:
        await client.close()


async def fetched(url: str, tls: TlsIdentity | None) -> bytes:
    pieces: list[bytes] = []
    await fetch(url, 0, pieces.append, bytes_max=100, tls=tls)
    return b"".join(pieces)


Ask = Callable[[str, TlsIdentity | None], Awaitable[bytes]]
BOTH = pytest.mark.parametrize("ask", [asked, fetched])


@BOTH
def test_a_gateway_of_the_cluster_is_asked(tmp_path: Path, ask: Ask) -> None:
    async def main() -> None:
        tls = joined(tmp_path)
        gateway = machine(tmp_path / "gateway", authority_in(tmp_path / "ca"), GATEWAY)
        async with answering(gateway) as (url, heads):
            assert await ask(url, tls) == b"hi"
            assert len(heads) == 1

    asyncio.run(main())


@BOTH
@pytest.mark.parametrize(
    ("name", "authority"),
    [
        (OTHER, "ca"),
        (PeerName("other-plant", "gateway", GATEWAY.id), "ca"),
        (GATEWAY, "foreign"),
    ],
    ids=["a node", "another cluster", "another authority"],
)
def test_whoever_is_no_gateway_of_the_cluster_is_told_nothing(
    tmp_path: Path, ask: Ask, name: PeerName, authority: str
) -> None:
    async def main() -> None:
        tls = joined(tmp_path)
        posing = machine(tmp_path / "posing", authority_in(tmp_path / authority), name)
        async with answering(posing) as (url, heads):
            with pytest.raises((Denied, Unreachable)):
                await ask(url, tls)
            assert heads == []

    asyncio.run(main())


@BOTH
def test_a_node_that_has_joined_asks_no_other_machine_in_plain_text(
    tmp_path: Path, ask: Ask
) -> None:
    async def main() -> None:
        with pytest.raises(DinError, match="plain text"):
            await ask("http://192.0.2.1:8000", joined(tmp_path))

    asyncio.run(main())


@BOTH
def test_a_node_that_has_not_joined_asks_no_other_machine_at_all(tmp_path: Path, ask: Ask) -> None:
    """Whoever announces a gateway of its cluster would be obeyed."""
    del tmp_path

    async def main() -> None:
        with pytest.raises(Denied, match="anybody may answer") as told:
            await ask("http://192.0.2.1:8000", None)
        assert "din node join -" in told.value.hint

    asyncio.run(main())


def test_on_an_insecure_network_it_asks_whom_it_likes() -> None:
    assert HttpClient("http://192.0.2.1:8000", is_insecure=True)


@BOTH
def test_a_node_that_has_not_joined_does_not_pretend_to_speak_tls(tmp_path: Path, ask: Ask) -> None:
    del tmp_path

    async def main() -> None:
        with pytest.raises(UsageError):
            await ask("https://127.0.0.1:9", None)

    asyncio.run(main())
