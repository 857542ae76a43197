"""The encrypted socket by itself: records, pieces, blocked writes, ends."""

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tls_machines import Machines, ask_for_new_keys, secured

from din.transport.tls_socket import (
    CUT,
    NEW_KEYS,
    RECORD_BYTES,
    TURN_BYTES_MAX,
    TlsSocket,
    tls_reason,
)

APPLICATION_DATA = 23


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    return Machines(tmp_path_factory.mktemp("machines"))


def peek(sock: TlsSocket) -> bytes:
    """What lies in the kernel, as it came over the wire."""
    return socket.socket.recv(sock._socket, 1 << 20, socket.MSG_PEEK)


def records(raw: bytes) -> list[tuple[int, int]]:
    """(type, length) of each TLS record."""
    found: list[tuple[int, int]] = []
    while raw:
        kind, _, nbytes = struct.unpack_from(">BHH", raw)
        found.append((kind, nbytes))
        raw = raw[5 + nbytes :]
    return found


async def received(sock: TlsSocket, nbytes: int, rooms: Sequence[int] = (1 << 20,)) -> bytes:
    data, turn = bytearray(), 0
    async with asyncio.timeout(30):
        while len(data) < nbytes:
            room = memoryview(bytearray(min(rooms[turn % len(rooms)], nbytes - len(data))))
            turn += 1
            try:
                count = sock.recv_into(room)
            except BlockingIOError:
                await asyncio.sleep(0)
                continue
            assert count, "the end came early"
            data += room[:count]
    return bytes(data)


async def sent(sock: TlsSocket, parts: Sequence[bytes]) -> None:
    views = [memoryview(part) for part in parts if part]
    async with asyncio.timeout(30):
        while views:
            try:
                taken = sock.sendmsg(views, (), 0)
            except BlockingIOError:
                await asyncio.sleep(0)
                continue
            while views and taken >= len(views[0]):
                taken -= len(views.pop(0))
            if taken:
                views[0] = views[0][taken:]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(
        st.sampled_from([0, 1, 5, 63, 4096, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1])
        | st.integers(0, 200_000),
        max_size=12,
    ),
    rooms=st.lists(st.integers(1, 5000) | st.integers(5000, 300_000), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
def test_what_is_sent_in_any_parts_is_received_in_any_pieces(
    machines: Machines, parts: list[int], rooms: list[int], seed: int
) -> None:
    data = [random.Random(seed + number).randbytes(size) for number, size in enumerate(parts)]

    async def main() -> None:
        async with secured(machines) as (client, server):
            client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            wanted = b"".join(data)
            _, got = await asyncio.gather(sent(client, data), received(server, len(wanted), rooms))
            assert got == wanted

    asyncio.run(main())


def test_small_parts_travel_in_one_record_and_large_ones_fill_theirs(machines: Machines) -> None:
    async def main() -> None:
        async with secured(machines) as (client, server):
            overhead = 17  # the type and the tag
            assert client.sendmsg([memoryview(bytes(size)) for size in (16, 150, 4000)], (), 0) == (
                4166
            )
            await asyncio.sleep(0.01)
            assert records(peek(server)) == [(APPLICATION_DATA, 4166 + overhead)]
            await received(server, 4166)
            size = 150 + 3 * RECORD_BYTES
            client.sendmsg([memoryview(bytes(150)), memoryview(bytes(size - 150))], (), 0)
            await asyncio.sleep(0.01)
            full = (APPLICATION_DATA, RECORD_BYTES + overhead)
            assert records(peek(server)) == [full, full, full, (APPLICATION_DATA, 150 + overhead)]

    asyncio.run(main())


def test_a_blocked_write_goes_on_where_it_stopped_though_more_was_queued(
    machines: Machines,
) -> None:
    async def main() -> None:
        async with secured(machines) as (client, server):
            client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            wanted, queue, blocked = bytearray(), bytearray(), 0
            got = bytearray()
            for number in range(400):
                piece = random.Random(number).randbytes(3001)
                wanted += piece
                queue += piece
                try:
                    taken = client.sendmsg([memoryview(bytes(queue))], (), 0)
                    del queue[:taken]
                except BlockingIOError:
                    blocked += 1
                if number % 50 == 49:
                    got += await received(server, len(wanted) - len(queue) - len(got) - 40_000)
            assert blocked > 10
            await asyncio.gather(
                sent(client, [bytes(queue)]),
                asyncio.create_task(take_rest(server, got, len(wanted))),
            )
            assert got == wanted

    async def take_rest(server: TlsSocket, got: bytearray, nbytes: int) -> None:
        got += await received(server, nbytes - len(got))

    asyncio.run(main())


def test_one_call_takes_no_more_than_a_turn(machines: Machines) -> None:
    async def main() -> None:
        async with secured(machines) as (client, server):
            for end in (client, server):
                end._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            data = memoryview(bytes(1 << 20))
            assert client.sendmsg([data], (), 0) <= TURN_BYTES_MAX
            await asyncio.sleep(0.01)
            assert server.recv_into(memoryview(bytearray(1 << 20))) <= TURN_BYTES_MAX

    asyncio.run(main())


def test_bytes_that_are_decrypted_already_are_known(machines: Machines) -> None:
    async def main() -> None:
        async with secured(machines) as (client, server):
            client.sendmsg([memoryview(bytes(1000))], (), 0)
            await asyncio.sleep(0.01)
            assert server.recv_into(memoryview(bytearray(10))) == 10
            assert server.has_more
            assert peek_is_empty(server)
            assert server.recv_into(memoryview(bytearray(2000))) == 990
            assert not server.has_more

    asyncio.run(main())


def peek_is_empty(sock: TlsSocket) -> bool:
    try:
        return not peek(sock)
    except BlockingIOError:
        return True


def test_descriptors_do_not_travel(machines: Machines) -> None:
    async def main() -> None:
        async with secured(machines) as (client, _):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"\0\0\0\0")]
            with pytest.raises(OSError, match="descriptors do not travel over TLS"):
                client.sendmsg([memoryview(b"x")], rights, 0)
            with pytest.raises(OSError, match="descriptors do not travel over TLS"):
                client.recvmsg_into([memoryview(bytearray(1))], 64, 0)

    asyncio.run(main())


def test_an_end_with_a_close_notice_is_an_end_and_one_without_is_a_cut(machines: Machines) -> None:
    async def main() -> None:
        room = memoryview(bytearray(100))
        async with secured(machines) as (client, server):
            client.sendmsg([memoryview(b"last words")], (), 0)
            client.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.01)
            assert server.recv_into(room) == 10
            assert server.recv_into(room) == 0
            server.sendmsg([memoryview(b"still heard, as it is")], (), 0)
            await asyncio.sleep(0.01)
            assert client.recv_into(room) > 21
        async with secured(machines) as (client, server):
            client.sendmsg([memoryview(b"last words")], (), 0)
            client.close()
            await asyncio.sleep(0.01)
            assert server.recv_into(room) == 10
            with pytest.raises(ConnectionError, match=CUT):
                server.recv_into(room)

    asyncio.run(main())


def test_whole_records_before_a_fault_are_delivered_and_the_fault_is_told_next(
    machines: Machines,
) -> None:
    async def main() -> None:
        async with secured(machines) as (client, server):
            data = random.Random(0).randbytes(RECORD_BYTES)
            client.sendmsg([memoryview(data)], (), 0)
            socket.socket.send(client._socket, b"\x17\x03\x03\x00\x20" + bytes(32))
            await asyncio.sleep(0.01)
            room = memoryview(bytearray(100_000))
            assert server.recv_into(room) == RECORD_BYTES
            assert bytes(room[:RECORD_BYTES]) == data
            assert server.has_more, "no descriptor becomes readable for it"
            with pytest.raises(ConnectionError, match="a TLS record was changed on the way"):
                server.recv_into(room)

    asyncio.run(main())


def test_new_keys_asked_for_in_mid_stream_lose_nothing(machines: Machines) -> None:
    async def main() -> None:
        async with secured(machines) as (client, server):
            for number in range(3):
                data = random.Random(number).randbytes(100_000)
                ask_for_new_keys(client)
                _, got = await asyncio.gather(sent(client, [data]), received(server, len(data)))
                assert got == data
                _, got = await asyncio.gather(sent(server, [data]), received(client, len(data)))
                assert got == data

    asyncio.run(main())


def test_what_openssl_says_is_told_in_words() -> None:
    unknown = ssl.SSLError(1, "[SSL: SOMETHING_ODD] something odd (_ssl.c:1)")
    assert tls_reason(unknown) == "TLS failed: [SSL: SOMETHING_ODD] something odd (_ssl.c:1)"
    unknown.reason = "SOMETHING_ODD"
    assert tls_reason(unknown) == "TLS failed: something odd"
    assert tls_reason(ssl.SSLEOFError(8, "EOF occurred")) == CUT
    assert tls_reason(ssl.SSLWantWriteError(3, "write")) == NEW_KEYS
