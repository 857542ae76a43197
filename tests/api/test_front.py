"""The connection: order, limits, slow and broken clients, on raw sockets."""

import asyncio
import base64
from contextlib import suppress

import msgspec
import pytest
from api_harness import Client, World, request, until, with_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from din.api.limits import FrontLimits
from din.errors import Busy

FACE = msgspec.json.encode({"model_id": "faces", "input_data": base64.b64encode(b"jpeg").decode()})
PLAIN = msgspec.json.encode(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.9, 2]}]}
)
PLAIN_PATH = "/v2/models/plain/infer"


def test_requests_of_both_kinds_are_answered_in_order_on_one_connection(tmp_path):
    async def test(world: World):
        client = await world.client()
        client.send(
            request("POST", "/infer", FACE, {"x-request-id": "one"}),
            request("GET", "/v2", headers={"x-request-id": "two"}),
            request("POST", PLAIN_PATH, PLAIN, {"x-request-id": "three"}),
            request("POST", "/api/v1/heartbeat", b"beat"),
            request("GET", "/api/v1/nodes", headers={"x-request-id": "five"}),
            request("POST", "/infer", FACE, {"x-request-id": "six"}),
        )
        answers = [await client.read() for _ in range(6)]
        assert [each.status for each in answers] == [200] * 6
        ids = [each.headers["din-request-id"] for each in answers]
        assert [ids[0], ids[1], ids[2], ids[4], ids[5]] == ["one", "two", "three", "five", "six"]
        assert answers[3].body == b"ok"
        assert world.inference.released == 3

    with_server(tmp_path, test)


def test_a_later_request_waits_for_the_slow_one_before_it(tmp_path):
    async def test(world: World):
        world.inference.gate = asyncio.Event()
        client = await world.client()
        client.send(request("POST", "/infer", FACE), request("GET", "/v2/health/live"))
        await world.inference.started.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.readexactly(1), 0.05)
        world.inference.gate.set()
        assert (await client.read()).json()["status"] == "completed"
        assert (await client.read()).json() == {"live": True}

    with_server(tmp_path, test)


def test_chunked_bodies_and_heads_split_at_every_byte(tmp_path):
    chunked = b"".join(b"%x\r\n%c\r\n" % (1, byte) for byte in FACE) + b"0\r\n\r\n"

    async def test(world: World):
        client = await world.client()
        head = b"POST /infer HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
        client.send(head + chunked)
        assert (await client.read()).status == 200
        for byte in request("POST", "/infer", FACE):
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.read()).status == 200

    with_server(tmp_path, test)


def test_many_tiny_pieces_arrive_whole(tmp_path):
    data = bytes(range(256)) * 40
    head = b"POST /infer?model=faces HTTP/1.1\r\ncontent-type: image/jpeg\r\n"
    head += b"transfer-encoding: chunked"
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n"

    async def test(world: World):
        client = await world.client()
        client.send(head + b"\r\n\r\n" + body)
        assert (await client.read()).status == 200
        chunks = world.inference.calls[0].chunks[0]
        assert b"".join(chunks) == data
        assert len(chunks) < 2100

    with_server(tmp_path, test)


def test_a_client_that_goes_cancels_its_request(tmp_path):
    """T49."""

    async def test(world: World):
        world.inference.gate = asyncio.Event()
        client = await world.client()
        client.send(request("POST", "/infer", FACE))
        await world.inference.started.wait()
        await client.close()
        await until(lambda: world.inference.cancelled)
        assert world.inference.released == 0

    with_server(tmp_path, test)


def test_a_body_at_the_limit_passes_and_one_more_byte_is_413(tmp_path):
    async def test(world: World):
        path, kind = "/infer?model=faces", {"content-type": "image/jpeg"}
        client = await world.client()
        assert (await client.ask("POST", path, bytes(1000), kind)).status == 200
        client.send(request("POST", path, b"", kind | {"content-length": "1001"}))
        answer = await client.read()
        assert answer.status == 413
        assert answer.json()["error"]["code"] == "DIN-140"
        assert "1000" in answer.json()["error"]["message"]
        assert await client.is_closed()
        chunked = kind | {"transfer-encoding": "chunked"}
        client = await world.client()
        head = "".join(f"{name}: {value}\r\n" for name, value in chunked.items())
        client.send(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + b"3e9\r\n" + bytes(1001))
        assert (await client.read()).status == 413
        assert ("unknown", "DIN-140") in world.inference.rejected

    with_server(tmp_path, test, FrontLimits(body_bytes_max=1000, linger_s=0.05))


def test_bytes_of_all_requests_together_are_bounded(tmp_path):
    async def test(world: World):
        first, second = await world.client(), await world.client()
        first.send(request("POST", "/infer", FACE)[:-1])
        await until(lambda: world.front.buffered_bytes)
        second.send(request("POST", "/infer", FACE))
        answer = await second.read()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"

    limits = FrontLimits(buffered_bytes_max=len(FACE) + 5, linger_s=0.05)
    with_server(tmp_path, test, limits)


def test_expect_100_continue_is_answered(tmp_path):
    async def test(world: World):
        client = await world.client()
        raw = request("POST", "/infer", FACE, {"expect": "100-continue"})
        client.send(raw[: -len(FACE)])
        assert (await client.read()).status == 100
        client.send(FACE)
        assert (await client.read()).status == 200

    with_server(tmp_path, test)


def test_slow_heads_bodies_and_idle_connections_end(tmp_path):
    async def test(world: World):
        silent, head, body, idle = [await world.client() for _ in range(4)]
        head.send(b"POST /infer HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        body.send(request("POST", "/infer", FACE)[:-1])
        assert (await idle.ask("POST", "/infer", FACE)).status == 200
        assert (await head.read()).status == 408
        assert (await body.read()).status == 408
        for client in (silent, head, body, idle):
            assert await client.is_closed()

    limits = FrontLimits(
        head_timeout_s=0.2, body_idle_timeout_s=0.2, keep_alive_timeout_s=0.2, linger_s=0.05
    )
    with_server(tmp_path, test, limits)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"POST /infer HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (b"POST /infer HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST /infer HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 5000, 431),
    ],
)
def test_malformed_http_is_refused_and_closed(tmp_path, raw, status):
    async def test(world: World):
        client = await world.client()
        for start in range(0, len(raw), 1000):
            client.send(raw[start : start + 1000])
            await client.writer.drain()
            await asyncio.sleep(0)
        answer = await client.read()
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()
        assert (await (await world.client()).ask("GET", "/v2")).status == 200

    with_server(tmp_path, test, FrontLimits(head_bytes_max=4000, linger_s=0.05))


@pytest.mark.parametrize(
    "fields",
    [b"x: " + b"a" * 5000 + b"\r\n", b"x: aaaa\r\n" * 700],
    ids=["one large field", "many small fields"],
)
def test_a_large_head_that_comes_at_once_and_whole_is_refused(tmp_path, fields):
    async def test(world: World):
        client = await world.client()
        client.send(b"GET /v2 HTTP/1.1\r\nhost: 127.0.0.1\r\n" + fields + b"\r\n")
        assert (await client.read()).status == 431
        assert await client.is_closed()

    with_server(tmp_path, test, FrontLimits(head_bytes_max=4000, linger_s=0.05))


def test_a_head_that_drips_ends_as_one_that_stops(tmp_path):
    async def test(world: World):
        client = await world.client()

        async def drip() -> None:
            with suppress(ConnectionError):
                while True:
                    client.send(b"x")
                    await asyncio.sleep(0.02)

        client.send(b"GET /v2 HTTP/1.1\r\nx-slow: ")
        dripping = asyncio.create_task(drip())
        assert (await client.read()).status == 408
        dripping.cancel()

    with_server(tmp_path, test, FrontLimits(head_timeout_s=0.3, linger_s=1.0))


@pytest.mark.parametrize(("path", "is_told"), [("/infer", True), ("/api/v1/models", False)])
def test_a_body_that_drips_without_a_pause_ends_too(tmp_path, path, is_told):
    async def test(world: World):
        client = await world.client()

        async def drip() -> None:
            with suppress(ConnectionError):
                while True:
                    client.send(b"x")
                    await asyncio.sleep(0.02)

        client.send(request("POST", path, FACE * 100)[: -len(FACE) * 100])
        dripping = asyncio.create_task(drip())
        if is_told:
            assert (await client.read()).status == 408
        assert await client.is_closed()
        dripping.cancel()

    with_server(tmp_path, test, FrontLimits(body_timeout_s=0.3, linger_s=1.0))


def test_too_many_pipelined_requests_are_refused_in_order(tmp_path):
    async def test(world: World):
        world.inference.gate = asyncio.Event()
        client = await world.client()
        client.send(request("POST", "/infer", FACE) * 6)
        await world.inference.started.wait()
        world.inference.gate.set()
        statuses = [(await client.read()).status for _ in range(4)]
        assert statuses == [200, 200, 200, 503]
        assert await client.is_closed()

    with_server(tmp_path, test, FrontLimits(pipelined_max=2, linger_s=0.05))


def test_connections_are_bounded(tmp_path):
    async def test(world: World):
        first = await world.client()
        assert (await first.ask("GET", "/v2")).status == 200
        assert (await (await world.client()).read()).status == 503
        assert (await first.ask("GET", "/v2")).status == 200

    with_server(tmp_path, test, FrontLimits(connections_max=1, linger_s=0.05))


def test_a_big_answer_to_a_slow_reader_is_whole_and_released_once(tmp_path):
    big = bytes(range(256)) * (16 * 4096)
    body = msgspec.json.decode(PLAIN) | {"parameters": {"binary_data_output": True}}

    async def test(world: World):
        world.inference.big = big
        client = await world.client()
        client.send(request("POST", PLAIN_PATH, msgspec.json.encode(body)) * 2)
        for _ in range(2):
            await asyncio.sleep(0.05)
            answer = await client.read()
            size = int(answer.headers["inference-header-content-length"])
            assert answer.body[size:] == big
        assert world.inference.released == 2

    with_server(tmp_path, test)


def test_a_reader_that_takes_nothing_is_cut_off(tmp_path):
    async def test(world: World):
        world.inference.big = bytes(64 * 1024 * 1024)
        body = msgspec.json.decode(PLAIN) | {"parameters": {"binary_data_output": True}}
        client = await world.client()
        client.writer.transport.pause_reading()
        client.send(request("POST", PLAIN_PATH, msgspec.json.encode(body)))
        await world.inference.started.wait()
        await until(lambda: not world.server._state.connections)
        assert world.inference.released == 1

    with_server(tmp_path, test, FrontLimits(write_timeout_s=0.1))


def test_of_too_many_unread_answers_the_oldest_is_cut_off(tmp_path):
    big = bytes(32 * 1024 * 1024)  # far more than the kernel takes
    body = msgspec.json.decode(PLAIN) | {"parameters": {"binary_data_output": True}}

    async def test(world: World):
        world.inference.big = big
        unsent, clients = world.front.unsent, []
        for _ in range(3):
            clients.append(await world.client())
            clients[-1].writer.transport.pause_reading()
            clients[-1].send(request("POST", PLAIN_PATH, msgspec.json.encode(body)))
            number = len(clients)
            await until(lambda number=number: world.inference.released == number)
            await asyncio.sleep(0.05)
            assert unsent.nbytes <= 2 * len(big)
        await until(lambda: len(world.server._state.connections) == 2)
        for client in clients[1:]:
            client.writer.transport.resume_reading()
            answer = await client.read()
            assert answer.body[int(answer.headers["inference-header-content-length"]) :] == big
        await until(lambda: unsent.nbytes == 0)

    with_server(tmp_path, test, FrontLimits(unsent_bytes_max=2 * 32 * 1024 * 1024))


def test_retry_later_answers_say_when(tmp_path):
    async def test(world: World):
        world.inference.error = Busy("every queue is full", hint="try again")
        answer = await (await world.client()).ask("POST", "/infer", FACE)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")

    with_server(tmp_path, test)


def test_a_fault_inside_is_a_500_without_inner_words(tmp_path, caplog):
    async def test(world: World):
        world.inference.error = ZeroDivisionError("secret")
        answer = await (await world.client()).ask("POST", PLAIN_PATH, PLAIN)
        assert answer.status == 500
        assert answer.json()["din"]["code"] == "DIN-900"
        assert b"secret" not in answer.body

    with_server(tmp_path, test)
    assert "secret" in caplog.text


def test_http_1_0_is_answered_and_closed(tmp_path):
    async def test(world: World):
        client = await world.client()
        client.send(request("POST", "/infer", FACE).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await client.read()).status == 200
        assert await client.is_closed()

    with_server(tmp_path, test)


def test_stopping_lets_a_running_request_end(tmp_path):
    async def test(world: World):
        world.inference.gate = asyncio.Event()
        client = await world.client()
        client.send(request("POST", "/infer", FACE))
        await world.inference.started.wait()
        stopping = asyncio.create_task(world.server.stop(grace_s=5))
        await asyncio.sleep(0.02)
        world.inference.gate.set()
        assert (await client.read()).status == 200
        await stopping

    with_server(tmp_path, test)


def test_stopping_cancels_what_does_not_end(tmp_path):
    async def test(world: World):
        world.inference.gate = asyncio.Event()
        client = await world.client()
        client.send(request("POST", "/infer", FACE))
        await world.inference.started.wait()
        await world.server.stop(grace_s=0.05)
        assert world.inference.cancelled == 1
        assert await client.is_closed()

    with_server(tmp_path, test)


@pytest.mark.parametrize("length", [b"content-length: 36", b"transfer-encoding: chunked"])
def test_a_body_beside_an_upgrade_is_not_taken_for_a_request(tmp_path, length: bytes):
    """The parser skips such a body, so what lies in it would be answered as a request."""

    async def test(world: World):
        client: Client = await world.client()
        client.send(
            b"POST /infer HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"connection: upgrade\r\nupgrade: websocket\r\n"
            + length + b"\r\n\r\nGET /v2/health/live HTTP/1.1\r\nx: y\r\n\r\n"
        )  # fmt: skip
        answer = await client.read()
        assert answer.status == 400
        assert b"a request to upgrade has a body" in answer.body
        assert await client.is_closed()

    with_server(tmp_path, test)


def test_an_unusable_target_is_named(tmp_path):
    async def test(world: World):
        client: Client = await world.client()
        client.send(b"POST http://[::1/infer HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = await client.read()
        assert answer.status == 400
        assert b"callback" not in answer.body

    with_server(tmp_path, test)


PIECES = st.sampled_from(
    [
        b"POST /infer HTTP/1.1\r\n",
        b"POST /v2/models/plain/infer HTTP/1.1\r\n",
        b"GET /v2 HTTP/1.1\r\n",
        b"content-length: 5\r\n",
        b"content-length: 99999999999999999999\r\n",
        b"transfer-encoding: chunked\r\n",
        b"expect: 100-continue\r\n",
        b"upgrade: h2c\r\nconnection: upgrade\r\n",
        b"inference-header-content-length: -1\r\n",
        b"\r\n",
        b"hello",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n",
    ]
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(PIECES | st.binary(max_size=40), max_size=12), min_size=8, max_size=8))
def test_whatever_comes_the_server_lives(tmp_path, connections):
    async def test(world: World):
        async def throw(pieces: list[bytes]) -> None:
            client: Client = await world.client()
            client.send(*pieces)
            client.writer.write_eof()
            await client.is_closed()

        await asyncio.gather(*map(throw, connections))
        answer = await (await world.client()).ask("POST", "/infer", FACE)
        assert answer.status == 200

    with_server(tmp_path, test, FrontLimits(linger_s=0.05))
