"""A turn's datagrams and their answers, by one system call each way or one for each."""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from din.transport import datagram_calls as module
from din.transport.datagram_calls import (
    DATAGRAM_BYTES_MAX,
    DATAGRAMS_PER_TURN_MAX,
    DatagramCalls,
    SingleCalls,
    TurnCalls,
    calls_for,
)
from din.wire import beat_datagram

WAIT_S = 10.0


class Port:
    """A socket that receives by turns, and callers of it."""

    def __init__(self, host: str, make: Callable[[socket.socket], DatagramCalls]) -> None:
        self.family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        self.socket.bind((host, 0))
        self.socket.setblocking(False)
        self.calls = make(self.socket)
        self.callers: list[socket.socket] = []

    def caller(self) -> socket.socket:
        sock = socket.socket(self.family, socket.SOCK_DGRAM)
        sock.settimeout(WAIT_S)
        sock.connect(self.socket.getsockname())
        self.callers.append(sock)
        return sock

    def receive(self) -> list[bytes]:
        assert select.select([self.socket], [], [], WAIT_S)[0], "nothing came"
        return self.calls.receive()

    def close(self) -> None:
        for sock in (*self.callers, self.socket):
            sock.close()


@pytest.fixture(params=["127.0.0.1", "::1"])
def host(request: pytest.FixtureRequest) -> str:
    if request.param == "::1":
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("::1", 0))
            except OSError as error:
                pytest.skip(f"no IPv6 here: {error}")
    return request.param


@pytest.fixture(params=[SingleCalls, calls_for], ids=["call for each", "call for all"])
def port(request: pytest.FixtureRequest, host: str) -> Iterator[Port]:
    port = Port(host, request.param)
    yield port
    port.close()


@pytest.fixture
def turn_port() -> Iterator[Port]:
    port = Port("127.0.0.1", calls_for)
    if not isinstance(port.calls, TurnCalls):
        port.close()
        pytest.skip("this machine has no call for many datagrams")
    yield port
    port.close()


def is_silent(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        sock.recv(1)
    except BlockingIOError:
        return True
    return False


def test_64_bit_linux_takes_a_turn_by_one_call() -> None:
    if module.sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        pytest.skip("another machine")
    port = Port("127.0.0.1", calls_for)
    assert isinstance(port.calls, TurnCalls)
    port.close()


def test_the_structures_lie_where_the_kernel_reads_them() -> None:
    """As in include/linux/socket.h of a 64-bit kernel."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        pytest.skip("another machine")
    fields = ("name", "name_bytes", "pieces", "piece_count", "control", "control_bytes", "flags")
    assert [getattr(module._Message, each).offset for each in fields] == [0, 8, 16, 24, 32, 40, 48]
    assert module._Message.length.offset == 56
    assert ctypes.sizeof(module._Message) == 64
    assert ctypes.sizeof(module._Piece) == 16


def test_each_sender_hears_its_own_answer_and_who_gets_none_hears_nothing(port: Port) -> None:
    callers = [port.caller() for _ in range(7)]
    silent = {0, 3, 4, 6}
    for number, caller in enumerate(callers):
        caller.send(b"from %d" % number)
    arrived = port.receive()
    assert arrived == [b"from %d" % number for number in range(7)]
    answers = [
        None if number in silent else each + b" back" * number
        for number, each in enumerate(arrived)
    ]
    assert port.calls.answer(answers) == 0
    for number, caller in enumerate(callers):
        if number in silent:
            assert is_silent(caller), number
        else:
            assert caller.recv(1000) == answers[number]


def test_a_turn_has_an_end_and_the_rest_comes_with_the_next(port: Port) -> None:
    caller = port.caller()
    sent = [b"%d" % number for number in range(DATAGRAMS_PER_TURN_MAX + 3)]
    for each in sent:
        caller.send(each)
    first = port.receive()
    assert first == sent[:DATAGRAMS_PER_TURN_MAX]
    assert port.calls.answer(first) == 0
    rest = port.receive()
    assert rest == sent[DATAGRAMS_PER_TURN_MAX:]
    assert port.calls.answer([each * 2 for each in rest]) == 0
    assert [caller.recv(1000) for _ in sent] == first + [each * 2 for each in rest]


def test_nothing_has_come_and_nothing_is_answered(port: Port) -> None:
    assert port.calls.receive() == []
    assert port.calls.answer([]) == 0
    port.caller().send(b"later")
    assert port.receive() == [b"later"]
    assert port.calls.answer([None]) == 0


def test_a_datagram_that_is_too_long_is_cut_to_what_no_receiver_takes(port: Port) -> None:
    caller = port.caller()
    for length in (DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MAX + 1, 9000, 0, 1):
        caller.send(b"x" * length)
    lengths = [len(each) for each in port.receive()]
    assert lengths == [DATAGRAM_BYTES_MAX] * 3 + [0, 1]
    assert DATAGRAM_BYTES_MAX > beat_datagram.DATAGRAM_BYTES_MAX


@given(
    turns=st.lists(
        st.lists(
            st.tuples(
                st.binary(max_size=DATAGRAM_BYTES_MAX + 9),
                st.none() | st.binary(min_size=1, max_size=DATAGRAM_BYTES_MAX),
            ),
            min_size=1,
            max_size=12,
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_nothing_of_an_earlier_turn_is_left_in_a_later_one(
    port: Port, turns: list[list[tuple[bytes, bytes | None]]]
) -> None:
    caller = port.caller()
    for turn in turns:
        for said, _ in turn:
            caller.send(said)
        assert port.receive() == [said[:DATAGRAM_BYTES_MAX] for said, _ in turn]
        assert port.calls.answer([answer for _, answer in turn]) == 0
        heard = [answer for _, answer in turn if answer is not None]
        assert [caller.recv(1000) for _ in heard] == heard
    assert is_silent(caller)
    port.callers.remove(caller)
    caller.close()


def test_a_sender_who_cannot_be_answered_costs_the_others_nothing(port: Port) -> None:
    """A forged source port of 0, to which the kernel sends nothing."""
    if port.family != socket.AF_INET:
        pytest.skip("the same for IPv6")
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    except PermissionError:
        pytest.skip("needs the right to forge packets")
    address = port.socket.getsockname()
    before, after = port.caller(), port.caller()
    with raw:
        before.send(b"before")
        forged = struct.pack(">HHHH", 0, address[1], 8 + 6, 0) + b"forged"
        raw.sendto(forged, (address[0], 0))
        after.send(b"after")
    arrived = port.receive()
    assert arrived == [b"before", b"forged", b"after"]
    assert port.calls.answer(arrived) == 1
    assert (before.recv(100), after.recv(100)) == (b"before", b"after")


def test_the_kernel_may_take_a_part_of_the_answers_and_refuse_one(turn_port: Port) -> None:
    real = turn_port.calls._send
    asked: list[int] = []

    def send(descriptor: int, messages_at: int, count: int, flags: int) -> int:
        asked.append(count)
        if len(asked) == 2:
            ctypes.set_errno(errno.EAGAIN)
            return -1
        return real(descriptor, messages_at, min(count, 3), flags)

    calls = TurnCalls(turn_port.socket, turn_port.calls._receive, send)
    caller = turn_port.caller()
    for number in range(8):
        caller.send(b"%d" % number)
    assert calls.answer(calls.receive()) == 1
    assert asked == [8, 5, 4, 1], "three went, the fourth was refused, three more, the last"
    assert [caller.recv(100) for _ in range(7)] == [b"%d" % each for each in (0, 1, 2, 4, 5, 6, 7)]


def test_a_kernel_that_takes_nothing_is_asked_once_for_each_answer(turn_port: Port) -> None:
    asked: list[int] = []

    def send(descriptor: int, messages_at: int, count: int, flags: int) -> int:
        asked.append(count)
        return -1

    calls = TurnCalls(turn_port.socket, turn_port.calls._receive, send)
    caller = turn_port.caller()
    for _ in range(5):
        caller.send(b"x")
    assert calls.answer(calls.receive()) == 5
    assert asked == [5, 4, 3, 2, 1]


def test_answers_after_the_port_was_given_back_go_nowhere(port: Port) -> None:
    caller = port.caller()
    caller.send(b"x")
    arrived = port.receive()
    port.socket.close()
    with socket.socket(port.family, socket.SOCK_DGRAM) as heir:  # has its number now
        heir.bind((port.callers[0].getsockname()[0], 0))
        assert port.calls.answer(arrived) == 1
        assert port.calls.receive() == []
    assert is_silent(caller)


def test_without_such_calls_each_datagram_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        argtypes: tuple[object, ...] = ()

        def __call__(self, *_: object) -> int:
            return -1  # as of a sandbox, or a kernel without them

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for library in (
            SimpleNamespace(),
            SimpleNamespace(recvmmsg=Refused()),
            SimpleNamespace(recvmmsg=Refused(), sendmmsg=Refused()),
        ):
            monkeypatch.setattr(module.ctypes, "CDLL", lambda _, library=library: library)
            assert isinstance(calls_for(sock), SingleCalls)
        monkeypatch.undo()
        monkeypatch.setattr(module.sys, "platform", "freebsd14")
        assert isinstance(calls_for(sock), SingleCalls)
