"""The agent's HTTP client against servers that we play ourselves, good and bad."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from din.errors import Conflict, NotFound, TooLarge, Unreachable, UsageError
from din.transport.http_client import HttpClient, fetch

FILE = bytes(range(256)) * 4000

Play = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Answers one request head; False ends the connection."""


class Server:
    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        self.heads: list[bytes] = []


@asynccontextmanager
async def playing(play: Play) -> AsyncIterator[Server]:
    server = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                server.heads.append(head)
                if not await play(head, reader, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await listener.wait_closed()
        await asyncio.sleep(0.01)


def answer(body: bytes, status: str = "200 OK", *extra: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def saying(data: bytes, *, keeps: bool = True) -> Play:
    async def play(head: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return keeps

    return play


async def echo(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
    writer.write(answer(head.split(b" ")[0] + b" " + body, "200 OK", "X-Kind: echo"))
    await writer.drain()
    return True


async def ranged(_head: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    start = 0
    for line in _head.lower().split(b"\r\n"):
        if line.startswith(b"range: bytes="):
            start = int(line.removeprefix(b"range: bytes=").rstrip(b"-"))
    part = FILE[start:]
    if start >= len(FILE):
        writer.write(answer(b"", "416 Range Not Satisfiable"))
    elif start:
        span = f"Content-Range: bytes {start}-{len(FILE) - 1}/{len(FILE)}"
        writer.write(answer(part, "206 Partial Content", span))
    else:
        writer.write(answer(part))
    await writer.drain()
    return True


def test_requests_share_one_connection() -> None:
    async def main() -> None:
        async with playing(echo) as server:
            client = HttpClient(server.url + "/")
            for number in range(5):
                status, headers, body = await client.request("POST", "/x", b"%d" % number)
                assert (status, headers["x-kind"], body) == (200, "echo", b"POST %d" % number)
            assert (await client.request("GET", "/y"))[2] == b"GET "
            assert server.connections == 1
            assert b"GET /y HTTP/1.1" in server.heads[-1]
            assert b"content-length" not in server.heads[-1].lower()
            await client.close()

    asyncio.run(main())


def test_calls_at_the_same_time_take_turns() -> None:
    async def main() -> None:
        async with playing(echo) as server:
            client = HttpClient(server.url)
            answers = await asyncio.gather(
                *(client.request("POST", "/", b"%d" % n) for n in range(10))
            )
            assert [body for _, _, body in answers] == [b"POST %d" % n for n in range(10)]
            assert server.connections == 1
            await client.close()

    asyncio.run(main())


def test_a_kept_connection_that_the_server_closed_is_opened_again() -> None:
    closing = saying(answer(b"once"), keeps=False)

    async def main() -> None:
        async with playing(closing) as server:
            client = HttpClient(server.url)
            for count in (1, 2, 3):
                assert (await client.request("GET", "/"))[2] == b"once"
                assert server.connections == count
                if count == 2:
                    await asyncio.sleep(0.02)
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_under_way", [False, True], ids=["idle", "under way"])
def test_after_a_reset_a_request_is_made_on_a_new_connection(is_under_way: bool) -> None:
    """The first connection falls silent after its first answer, as one by a lost address does."""
    silenced = asyncio.Event()

    async def once_then_silent(
        head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if b"/asked-again" in head and not silenced.is_set():
            silenced.set()
            await reader.read()
            return False
        return await echo(head, reader, writer)

    async def main() -> None:
        async with playing(once_then_silent) as server:
            client = HttpClient(server.url)
            await client.request("GET", "/")
            if is_under_way:
                asked = asyncio.create_task(client.request("POST", "/asked-again", b"x"))
                await silenced.wait()
                client.reset()
                assert (await asked)[2] == b"POST x"
            else:
                client.reset()
                assert (await client.request("POST", "/", b"x"))[2] == b"POST x"
            assert server.connections == 2
            await client.close()
            client.reset()

    asyncio.run(main())


def test_an_error_status_is_an_answer_not_a_failure() -> None:
    async def main() -> None:
        async with playing(saying(answer(b"{}", "503 Service Unavailable"))) as server:
            client = HttpClient(server.url)
            assert (await client.request("GET", "/"))[0] == 503
            await client.close()

    asyncio.run(main())


def test_a_refused_connection_names_url_cause_and_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]

    async def main() -> None:
        client = HttpClient(f"http://127.0.0.1:{port}")
        with pytest.raises(Unreachable, match=rf"127.0.0.1:{port}/x after \d+ ms: .*refused"):
            await client.request("GET", "/x")

    asyncio.run(main())


async def silent(_head: bytes, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> bool:
    await reader.read()
    return False


def test_a_silent_server_is_given_up_in_time() -> None:
    async def main() -> None:
        async with playing(silent) as server:
            client = HttpClient(server.url)
            with pytest.raises(Unreachable, match="/slow did not answer within 50 ms"):
                await client.request("GET", "/slow", timeout_ms=50)
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "no valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "no valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, "no valid HTTP"),
        (b"", "no valid HTTP|closed before an answer|broke off"),
    ],
)
def test_a_bad_answer_is_unreachable_with_the_reason(data: bytes, text: str) -> None:
    async def main() -> None:
        async with playing(saying(data, keeps=False)) as server:
            client = HttpClient(server.url)
            with pytest.raises(Unreachable, match=text):
                await client.request("GET", "/")
            await client.close()

    asyncio.run(main())


def test_an_answer_is_taken_up_to_its_limit_and_no_byte_more() -> None:
    async def main() -> None:
        async with playing(saying(answer(b"x" * 100))) as server:
            client = HttpClient(server.url, answer_bytes_max=100)
            assert len((await client.request("GET", "/"))[2]) == 100
            await client.close()
            client = HttpClient(server.url, answer_bytes_max=99)
            with pytest.raises(TooLarge, match="over 99 bytes"):
                await client.request("GET", "/")
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("url", ["ftp://host", "host:80", "http://", "http://host:port", ""])
def test_a_url_that_is_not_plain_http_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="URL"):
        HttpClient(url)


def test_a_path_with_a_space_is_the_callers_fault() -> None:
    async def main() -> None:
        async with playing(echo) as server:
            client = HttpClient(server.url)
            with pytest.raises(UsageError, match="cannot be asked for"):
                await client.request("GET", "/a b")
            assert (await client.request("GET", "/a"))[0] == 200
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("start", [0, 1, 1000, len(FILE) - 1])
def test_a_file_is_fetched_from_any_byte_on(start: int) -> None:
    async def main() -> None:
        async with playing(ranged) as server:
            got = bytearray()
            begun: list[int] = []
            fetched = await fetch(
                server.url + "/f", start, got.extend, bytes_max=len(FILE), on_start=begun.append
            )
            assert bytes(got) == FILE[start:]
            assert (fetched.start, fetched.nbytes, begun) == (start, len(got), [start])

    asyncio.run(main())


def test_a_server_without_ranges_begins_anew_and_says_so() -> None:
    async def main() -> None:
        async with playing(saying(answer(FILE))) as server:
            got = bytearray(b"old start")
            fetched = await fetch(
                server.url, 9, got.extend, bytes_max=len(FILE), on_start=lambda _: got.clear()
            )
            assert fetched.start == 0
            assert bytes(got) == FILE

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "start", "error"),
    [
        (answer(b"", "404 Not Found"), 0, NotFound),
        (answer(b"", "416 Range Not Satisfiable"), 5, Conflict),
        (answer(b"", "500 Internal Server Error"), 0, Unreachable),
        (answer(b"x", "206 Partial Content", "Content-Range: bytes 7-7/8"), 5, Unreachable),
        (answer(FILE)[:-1], 0, Unreachable),
        (answer(FILE), 0, TooLarge),
    ],
)
def test_a_fetch_that_fails_names_the_url(data: bytes, start: int, error: type[Exception]) -> None:
    limit = len(FILE) - (error is TooLarge)

    async def main() -> None:
        async with playing(saying(data, keeps=False)) as server:
            with pytest.raises(error, match=server.url):
                await fetch(server.url + "/f", start, len, bytes_max=limit)

    asyncio.run(main())


def test_a_download_that_stalls_is_given_up() -> None:
    async def stall(
        head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(answer(FILE)[:5000])
        return await silent(head, reader, writer)

    async def main() -> None:
        async with playing(stall) as server:
            with pytest.raises(Unreachable, match="within 80 ms"):
                await fetch(server.url, 0, len, bytes_max=len(FILE), stall_timeout_ms=80)

    asyncio.run(main())


def test_what_the_sink_raises_passes_through() -> None:
    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with playing(ranged) as server:
            with pytest.raises(OSError, match="No space left"):
                await fetch(server.url, 0, full, bytes_max=len(FILE))

    asyncio.run(main())
