"""A model of a server as a worker's session: what goes out, what comes back, what may go wrong."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from din.errors import BadTensor, DinError, ExecutionFailed, Internal, TooLarge, Unavailable
from din.foreign.connection import HEADER_LENGTH
from din.foreign.session import ForeignSession, open_session
from tests.foreign.stand_in import Answer, StandIn, as_json, stand_in, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in() as found:
        yield found


OPENED: list[ForeignSession] = []


@pytest.fixture(autouse=True)
def all_closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def opened(there: StandIn, **others: str) -> ForeignSession:
    port = there.url.rpartition(":")[2]
    told = {"url": there.url, "address": "127.0.0.1", "port": port, "host": f"localhost:{port}"}
    OPENED.append(open_session({**told, "model": "m", **others}))
    return OPENED[-1]


def values(content: Any, datatype: str = "FP32", shape: tuple[int, ...] = (2, 3)) -> Answer:
    output = {"name": "y", "datatype": datatype, "shape": shape, "data": content}
    return as_json({"model_name": "m", "outputs": [output]})


def binary(*outputs: tuple[dict[str, Any], bytes], extra: bytes = b"") -> Answer:
    entries = [
        {**entry, "parameters": {"binary_data_size": len(data), **entry.get("parameters", {})}}
        for entry, data in outputs
    ]
    head = json.dumps({"outputs": entries}).encode()
    body = head + b"".join(data for _, data in outputs) + extra
    return 200, {HEADER_LENGTH: str(len(head))}, body


def run(session: ForeignSession, x: Any = X, targets: dict[str, Any] | None = None) -> Any:
    return session.run({"x": x}, ("y",), targets or {})["y"]


def test_the_signature_is_what_the_server_says(server: StandIn) -> None:
    session = opened(server)
    assert [(each.name, each.dtype, each.shape) for each in session.inputs] == [
        ("x", "FP32", (None, 3))
    ]
    assert [each.name for each in session.outputs] == ["y"]
    assert not session.warm()


def test_values_go_as_json_where_the_server_has_no_binary_extension(server: StandIn) -> None:
    server.infer = lambda _, body: values(
        [2 * each for each in json.loads(body)["inputs"][0]["data"]]
    )
    assert run(opened(server)).tolist() == (2 * X).tolist()
    _, headers, body = server.asked[-1]
    assert json.loads(body)["inputs"] == [
        {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": X.reshape(-1).tolist()}
    ]
    assert headers["Content-Type"] == "application/json"


def test_bytes_go_as_they_are_where_it_has_and_land_in_the_place_given(server: StandIn) -> None:
    entry = {"name": "y", "datatype": "FP32", "shape": [2, 3]}
    server.infer = lambda headers, body: binary((entry, body[int(headers[HEADER_LENGTH]) :]))
    target = np.zeros((2, 3), np.float32)
    strange = np.array([[1, np.nan, np.inf], [-np.inf, -0.0, 1e-45]], np.float32)
    found = run(opened(server, is_binary="true"), strange, {"y": target})
    assert found is target
    assert target.tobytes() == strange.tobytes()


def test_one_connection_serves_many_runs_and_is_opened_again_when_the_server_closed_it(
    server: StandIn,
) -> None:
    server.infer = lambda _, body: values([0] * 6)
    session = opened(server)
    for _ in range(5):
        run(session)
    assert server.connections == 1
    server.infer = lambda _, body: (200, {"Connection": "close"}, values([1] * 6)[2])
    assert run(session).sum() == 6
    assert run(session).sum() == 6
    assert server.connections == 2


def test_the_token_is_shown_and_how_long_we_wait_is_told_to_those_who_understand_it(
    server: StandIn,
) -> None:
    server.infer = lambda _, body: values([0] * 6)
    for name, key in (("triton", "timeout"), ("din", "timeout_ms"), ("other", "")):
        session = opened(server, server=name, token="secret")
        session.until(time.monotonic_ns() // 1_000_000 + 5000)
        run(session)
        _, headers, body = server.asked[-1]
        assert headers["Authorization"] == "Bearer secret"
        parameters = json.loads(body).get("parameters", {})
        assert list(parameters) == ([key] if key else [])
        assert all(0 < each <= 5_000_000 for each in parameters.values())


def test_no_number_of_an_answer_is_lost_or_made_up(server: StandIn) -> None:
    session = opened(server)
    server.infer = lambda _, body: values([1, None, 3, 4, 5, 6])
    assert np.isnan(run(session)[0, 1])
    server.infer = lambda _, body: (
        200,
        {},
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [3], "data": '
        b"[NaN, Infinity, -Infinity]}]}",
    )
    assert np.array_equal(run(session), [np.nan, np.inf, -np.inf], equal_nan=True)
    server.models["m"]["outputs"] = [tensor("y", "INT64", -1)]
    session = opened(server)
    server.infer = lambda _, body: values([2**53 + 1, -(2**63)], "INT64", (2,))
    assert run(session).tolist() == [2**53 + 1, -(2**63)]
    for wrong in ([1.5, 2], [None, 1], [2**63, 1], ["a", "b"], [[1], [2, 3]]):
        server.infer = lambda _, body, wrong=wrong: values(wrong, "INT64", (2,))
        with pytest.raises(ExecutionFailed, match="'y'"):
            run(session)


def test_texts_go_and_come_as_json_and_as_bytes(server: StandIn) -> None:
    server.models["m"] = {
        "inputs": [tensor("x", "BYTES", -1)],
        "outputs": [tensor("y", "BYTES", -1)],
    }
    texts = np.array([b"one", "zw\u00f6lf".encode(), b""], np.object_)
    server.infer = lambda _, body: values(json.loads(body)["inputs"][0]["data"], "BYTES", (3,))
    assert run(opened(server), texts).tolist() == texts.tolist()
    entry = {"name": "y", "datatype": "BYTES", "shape": [3]}
    server.infer = lambda headers, body: binary((entry, body[int(headers[HEADER_LENGTH]) :]))
    assert run(opened(server, is_binary="true"), texts).tolist() == texts.tolist()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_json_cannot_say_is_refused_before_it_is_sent(server: StandIn, wrong: float) -> None:
    x = X.copy()
    x[1, 1] = wrong
    session = opened(server)
    with pytest.raises(BadTensor, match="'x' has NaN or infinite values"):
        run(session, x)
    assert not [path for path, _, _ in server.asked if path.endswith("/infer")]
    server.models["m"]["inputs"] = [tensor("x", "BF16")]
    with pytest.raises(BadTensor, match="BF16"):
        run(opened(server), X.astype(np.uint16))
    server.models["m"]["inputs"] = [tensor("x", "BYTES")]
    with pytest.raises(BadTensor, match="no UTF-8"):
        run(opened(server), np.array([b"\xff"], np.object_))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadTensor),
        (422, BadTensor),
        (413, TooLarge),
        (401, ExecutionFailed),
        (404, ExecutionFailed),
        (503, ExecutionFailed),
        (500, ExecutionFailed),
    ],
)
def test_the_servers_own_words_are_in_the_error(
    server: StandIn, status: int, kind: type[DinError]
) -> None:
    session = opened(server)
    server.infer = lambda _, body: as_json({"error": "shape \x1b[2J does not fit"}, status)
    with pytest.raises(kind) as caught:
        run(session)
    assert f"HTTP {status}: shape \\x1b[2J does not fit" in caught.value.message
    assert server.url in caught.value.message
    server.infer = lambda _, body: values([0] * 6)
    assert run(session).sum() == 0


WHOLE = {"name": "y", "datatype": "FP32", "shape": [2, 3]}


@pytest.mark.parametrize(
    "answer",
    [
        (200, {}, b"not json"),
        (200, {}, b"[" * 100_000),
        as_json({"outputs": []}),
        as_json({"outputs": [{**WHOLE, "datatype": "INT8", "data": [0] * 6}]}),
        as_json({"outputs": [{**WHOLE, "shape": [-2, 3], "data": []}]}),
        as_json({"outputs": [{**WHOLE, "shape": [2**40, 2**40], "data": []}]}),
        as_json({"outputs": [{**WHOLE, "data": [0] * 5}]}),
        as_json({"outputs": [WHOLE]}),
        binary((WHOLE, b"\0" * 20)),
        binary(({**WHOLE, "parameters": {"binary_data_size": 2**50}}, b"")),
        binary(({**WHOLE, "parameters": {"binary_data_size": -4}}, b"")),
        (200, {HEADER_LENGTH: "-1"}, b"{}"),
        (200, {HEADER_LENGTH: "9" * 30}, b"{}"),
        (200, {HEADER_LENGTH: "100"}, b"{}"),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_the_session_lives_on(
    server: StandIn, answer: Answer
) -> None:
    session = opened(server)
    server.infer = lambda _, body: answer
    with pytest.raises(Unavailable):  # ExecutionFailed is one: another replica may do better
        run(session)
    server.infer = lambda _, body: values([1] * 6)
    assert run(session).sum() == 6


def test_outputs_that_nobody_asked_for_are_read_over(server: StandIn) -> None:
    other = {"name": "other", "datatype": "FP32", "shape": [4]}
    server.infer = lambda _, body: binary((other, b"\x7f" * 16), (WHOLE, X.tobytes()), extra=b"!")
    session = opened(server, is_binary="true")
    assert run(session).tolist() == X.tolist()
    assert run(session).tolist() == X.tolist()
    assert server.connections == 2, "what follows the answer makes the connection useless"


def test_stopping_cuts_the_connection_and_the_next_run_opens_another(server: StandIn) -> None:
    session, is_asked, may_go = opened(server), threading.Event(), threading.Event()

    def slow(_: Any, body: bytes) -> Answer:
        is_asked.set()
        may_go.wait(20)
        return values([0] * 6)

    def stop() -> None:
        is_asked.wait(20)
        session.stop()

    server.infer = slow
    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(Unavailable, match="stopped"):
        run(session)
    stopper.join()
    may_go.set()
    assert run(session).sum() == 0


def test_a_server_that_is_gone_is_said_so_at_once() -> None:
    with stand_in() as server:
        session = opened(server)
    with pytest.raises(Unavailable, match=f"{server.url} does not answer: Connection refused"):
        run(session)
    with pytest.raises(Unavailable, match="does not answer"):
        opened(server)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"inputs": [tensor("x")], "outputs": []},
        {"inputs": [tensor("x", "STRING")], "outputs": [tensor("y")]},
        {"inputs": [tensor("x", "FP32", -2)], "outputs": [tensor("y")]},
        {"inputs": [tensor("")], "outputs": [tensor("y")]},
        {"inputs": [tensor("x")] * 300, "outputs": [tensor("y")]},
        {"inputs": "x"},
        [],
    ],
)
def test_metadata_without_a_usable_signature_says_what_is_wrong(
    server: StandIn, metadata: Any
) -> None:
    server.models["m"] = metadata
    with pytest.raises(Unavailable):
        opened(server)


def test_settings_that_a_worker_does_not_know_are_our_fault(server: StandIn) -> None:
    with pytest.raises(Internal):
        opened(server, colour="red")


def test_an_answer_that_finds_no_memory_is_the_servers_and_not_the_callers(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"name": "y", "datatype": "FP32", "shape": [2, 3]}
    server.infer = lambda headers, body: binary((entry, body[int(headers[HEADER_LENGTH]) :]))
    session = opened(server, is_binary="true")

    def full(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("din.foreign.session.target_for", full)
        with pytest.raises(ExecutionFailed, match=r"answered with more than its worker may hold"):
            run(session)
    assert run(session).tolist() == X.tolist(), "the session lives on"
