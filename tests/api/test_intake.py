"""Posts with a head that came before, in pieces of any size, and posts that run without a task."""

import asyncio

import msgspec
import pytest
from api_harness import Client, World, request, until, with_server

from din.api.intake import AWAITED_BYTES_MAX, HEAD_BYTES_MAX, Intake
from din.api.limits import FrontLimits
from din.errors import Unavailable

PATH = "/v2/models/plain/infer"


def oip(raw: bytes, **more: str) -> bytes:
    """One request with eight raw bytes."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(raw) // 8, 2]}
    tensor |= {"parameters": {"binary_data_size": len(raw)}}
    head = msgspec.json.encode({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    fields = {"inference-header-content-length": str(len(head))} | more
    return request("POST", PATH, head + raw, fields)


async def connected(world: World) -> tuple[Client, Intake]:
    """A client, and where its bytes land."""
    client = await world.client()
    await until(lambda: world.server._state.connections)
    (connection,) = world.server._state.connections
    return client, connection._intake


def raw_of(answer) -> bytes:
    assert answer.status == 200, answer.body
    return answer.body[int(answer.headers["inference-header-content-length"]) :]


@pytest.fixture(params=["task", "express"])
def is_express(request: pytest.FixtureRequest) -> bool:
    return request.param == "express"


def test_known_posts_are_answered_with_their_own_bytes_however_they_are_cut(tmp_path, is_express):
    async def test(world: World):
        world.inference.is_express = is_express
        client, intake = await connected(world)
        size = len(oip(bytes(8)))
        for number, cut in enumerate([size, *range(1, size, 7), size - 1]):
            raw = bytes([number] * 8)
            whole = oip(raw)
            client.send(whole[:cut])
            if cut < size:
                await client.writer.drain()
                await asyncio.sleep(0.001)
                client.send(whole[cut:])
            assert raw_of(await client.read()) == raw
        assert intake._last is not None
        assert world.front.reception.awaited_bytes == 0
        assert (world.inference.expressed > 10) == is_express

    with_server(tmp_path, test)


def test_known_posts_in_one_piece_are_answered_in_order(tmp_path, is_express):
    async def test(world: World):
        world.inference.is_express = is_express
        client = await world.client()
        raws = [bytes([number] * 8) for number in range(9)]
        for batch in (raws[:1], raws[1:2], raws[2:5], raws[5:6], raws[6:]):
            client.send(*map(oip, batch))
            assert [raw_of(await client.read()) for _ in batch] == batch
            client.send(request("GET", "/v2/health/live"))
            assert (await client.read()).json() == {"live": True}

    with_server(tmp_path, test)


def test_a_known_post_that_stops_in_mid_body_is_a_408(tmp_path):
    async def test(world: World):
        client = await world.client()
        assert (await client.ask("POST", "/infer", b"{}")).status == 400
        client.send(request("POST", "/infer", b"{}")[:-1])
        await until(lambda: world.front.reception.awaited_bytes)
        assert (await client.read()).status == 408
        assert world.front.reception.awaited_bytes == 0
        assert await client.is_closed()

    with_server(tmp_path, test, FrontLimits(body_idle_timeout_s=0.05, linger_s=0.05))


def test_a_client_that_goes_in_mid_body_leaves_nothing(tmp_path):
    async def test(world: World):
        client = await world.client()
        client.send(oip(bytes(8)))
        raw_of(await client.read())
        client.send(oip(bytes(8))[:-3])
        await until(lambda: world.front.reception.awaited_bytes)
        await client.close()
        await until(lambda: not world.front.reception.awaited_bytes)
        assert len(world.inference.calls) == 1

    with_server(tmp_path, test)


def test_bodies_beyond_the_budget_come_through_the_parser(tmp_path):
    async def test(world: World):
        client = await world.client()
        world.front.reception.awaited_bytes = AWAITED_BYTES_MAX
        for number in range(3):
            whole = oip(bytes([number] * 8))
            client.send(whole[:-4])
            await client.writer.drain()
            await asyncio.sleep(0.001)
            client.send(whole[-4:])
            assert raw_of(await client.read()) == bytes([number] * 8)
        world.front.reception.awaited_bytes = 0

    with_server(tmp_path, test)


def test_the_bytes_of_known_posts_count_against_the_common_bound(tmp_path):
    async def test(world: World):
        world.inference.gate = asyncio.Event()
        world.inference.gate.set()
        first, second = await world.client(), await world.client()
        first.send(oip(bytes(8)))
        raw_of(await first.read())
        world.inference.gate.clear()
        first.send(oip(bytes(8)))
        await until(lambda: len(world.inference.calls) == 2)
        second.send(oip(bytes(8)))
        answer = await second.read()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        world.inference.gate.set()
        raw_of(await first.read())

    nbytes = len(oip(bytes(8)).partition(b"\r\n\r\n")[2])
    with_server(tmp_path, test, FrontLimits(buffered_bytes_max=nbytes + 5, linger_s=0.05))


BODY = b"{}"
PLAIN = request("POST", "/infer", BODY)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(request("POST", "/infer", BODY, {"connection": "close"}), id="closing"),
        pytest.param(request("POST", "/infer", BODY, {"expect": "100-continue"}), id="continue"),
        pytest.param(PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"), id="old"),
        pytest.param(b"\r\n\r\n" + PLAIN, id="empty lines before"),
        pytest.param(request("POST", "/api/v1/heartbeat", b""), id="no body"),
        pytest.param(request("GET", "/v2/health/live"), id="not ours"),
        pytest.param(
            b"POST /infer HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\n\r\n",
            id="chunked",
        ),
        pytest.param(
            PLAIN.replace(b"host: 127.0.0.1\r\n", b"host: 127.0.0.1\n"), id="bare line feed"
        ),
        pytest.param(
            b"POST /infer HTTP/1.1\ncontent-length: 6\n\n{}\r\n\r\n", id="an end inside the body"
        ),
        pytest.param(
            request("POST", "/infer", BODY, {"x": "y" * HEAD_BYTES_MAX}), id="a long head"
        ),
    ],
)
def test_heads_that_are_not_plain_are_not_kept(tmp_path, raw: bytes):
    async def test(world: World):
        client, intake = await connected(world)
        client.send(raw)
        await client.read()
        assert intake._last is None

    with_server(tmp_path, test)


def test_only_the_first_head_of_a_piece_is_kept(tmp_path):
    async def test(world: World):
        client, intake = await connected(world)
        beat = request("POST", "/api/v1/heartbeat", b"beat", {"expect": "100-continue"})
        client.send(beat + PLAIN)
        assert (await client.read()).status == 100
        assert (await client.read()).status == 200
        assert (await client.read()).status == 400
        assert intake._last is None

    with_server(tmp_path, test)


# Without a task.


async def warm(world: World):
    """A client whose posts are known, so that they may go express."""
    client = await world.client()
    client.send(oip(bytes(8)))
    raw_of(await client.read())
    world.inference.is_express = True
    world.inference.started.clear()
    return client


def test_a_client_that_goes_cancels_its_express_request(tmp_path):
    async def test(world: World):
        client = await warm(world)
        world.inference.gate = asyncio.Event()
        client.send(oip(bytes(8)))
        await world.inference.started.wait()
        assert world.inference.expressed == 1
        await client.close()
        await until(lambda: world.inference.cancelled)
        assert world.inference.released == 1

    with_server(tmp_path, test)


def test_an_express_failure_is_told_with_the_callers_id(tmp_path):
    async def test(world: World):
        await (await warm(world)).close()
        client = await world.client()
        for _ in range(2):
            client.send(oip(bytes(8), **{"x-request-id": "mine"}))
            raw_of(await client.read())
        world.inference.error = Unavailable("no worker", hint="later")
        client.send(oip(bytes(8), **{"x-request-id": "mine"}))
        answer = await client.read()
        assert (answer.status, answer.headers["din-request-id"]) == (503, "mine")
        assert "no worker" in answer.json()["error"]
        assert world.inference.rejected == []

    with_server(tmp_path, test)


def test_a_big_express_answer_to_a_slow_reader_is_whole(tmp_path):
    async def test(world: World):
        client = await warm(world)
        world.inference.big = bytes(range(256)) * 4 * 8192
        client.send(oip(bytes(8)), request("GET", "/v2/health/live"))
        await until(lambda: world.inference.released == 2)
        await asyncio.sleep(0.05)
        assert raw_of(await client.read()) == world.inference.big
        assert (await client.read()).json() == {"live": True}

    with_server(tmp_path, test)


def test_stopping_lets_an_express_request_end_and_cancels_what_does_not(tmp_path):
    async def test(world: World):
        first, second = await warm(world), await warm(world)
        world.inference.gate = asyncio.Event()
        for client in (first, second):
            client.send(oip(bytes(8)))
        await until(lambda: world.inference.expressed == 3)
        stopping = asyncio.create_task(world.server.stop(grace_s=0.5))
        await asyncio.sleep(0.05)
        await second.close()
        world.inference.gate.set()
        raw_of(await first.read())
        assert await first.is_closed()
        await stopping

    with_server(tmp_path, test)
