import hashlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import din
from din.client.arrays import decode_array, encode_array, encode_request
from din.client.http import Connection
from din.client.uploads import TRIES_MAX
from din.domain.views import RegisterModel
from din.errors import (
    BadTensor,
    Busy,
    CannotPlace,
    Conflict,
    DeadlineExceeded,
    Denied,
    Internal,
    NotFound,
    TooLarge,
    Unreachable,
    UsageError,
)
from tests.client.fake_gateway import FakeGateway, Reply, Seen, document, failing

STEP = {"node": "edge-gpu-01", "phase": "backbone", "latency_ms": 18.3, "gpu_util": None}


def adapted(_: Seen) -> Reply:
    body = {
        "request_id": "req-8a3f2b1c",
        "status": "completed",
        "result": {"boxes": [[1.0, 2.0, 3.0, 4.0]], "scores": [0.9], "labels": ["face"]},
        "model_id": "centerface",
        "version": "1",
        "execution_trace": [STEP],
    }
    return Reply(200, json.dumps(body).encode())


def echo(seen: Seen) -> Reply:
    """Each input comes back as an output, byte by byte."""
    size = int(seen.headers["inference-header-content-length"])
    request = json.loads(seen.body[:size])
    head = {
        "model_name": "m",
        "model_version": "1",
        "parameters": {"execution_trace": json.dumps([STEP])},
        "outputs": request["inputs"],
    }
    encoded = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(encoded)), "din-request-id": "req-1"}
    return Reply(200, encoded + seen.body[size:], headers)


def test_a_photo_is_sent_as_it_is_and_boxes_come_back(fake: FakeGateway, tmp_path: Path) -> None:
    fake.routes["POST", "/infer"] = adapted
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"\xff\xd8photo")
    with din.Client(fake.url) as client:
        for given in (photo, str(photo), b"\xff\xd8photo", bytearray(b"\xff\xd8photo")):
            answer = client.infer("center face/\u7f51", given, timeout_ms=700)
            assert fake.seen[-1].body == b"\xff\xd8photo"
    assert answer.result["boxes"] == [[1.0, 2.0, 3.0, 4.0]]
    assert answer.execution_trace[0].node == "edge-gpu-01"
    assert answer.execution_trace[0].gpu_util is None
    assert fake.seen[-1].path == "/infer?model=center+face%2F%E7%BD%91&timeout_ms=700"
    assert fake.seen[-1].headers["content-type"] == "application/octet-stream"


def test_one_connection_serves_many_requests(fake: FakeGateway) -> None:
    with din.Client(fake.url) as client:
        for _ in range(5):
            client.nodes()
        sock = client._connection._http.sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert fake.connections == 1


ARRAYS: dict[str, Any] = {
    "plain": np.arange(12, dtype=np.float32).reshape(3, 4),
    "transposed": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "strided": np.arange(24, dtype=np.int16)[::3],
    "byte-swapped": np.arange(6, dtype=">f8"),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    "zero-size": np.zeros((2, 0, 3), dtype=np.float32),
    "scalar": np.float32(3.5),
    "bool": np.array([True, False]),
    "half": np.array([1.5, -2.0], dtype=np.float16),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_layout_arrive_with_equal_values(fake: FakeGateway, name: str) -> None:
    """T37, T38."""
    fake.routes["POST", "/v2/models/m/infer"] = echo
    wanted = np.asarray(ARRAYS[name])
    with din.Client(fake.url) as client:
        answer = client.infer("m", {"x": wanted})
    given = answer.outputs["x"]
    assert given.shape == wanted.shape
    assert np.array_equal(given, wanted)
    assert given.dtype == wanted.dtype.newbyteorder("<")
    assert answer.request_id == "req-1"
    assert answer.execution_trace[0].phase == "backbone"


@pytest.mark.parametrize(
    "elements", [[], ["", ""], ["a", "", "\u7f51"], [b"\x00\xff", b""]], ids=str
)
def test_bytes_make_an_exact_round_trip(fake: FakeGateway, elements: list[Any]) -> None:
    """T39."""
    fake.routes["POST", "/v2/models/m/infer"] = echo
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    with din.Client(fake.url) as client:
        given = client.infer("m", {"x": array}).outputs["x"]
    assert given.tolist() == [e.encode() if isinstance(e, str) else e for e in elements]


def test_bfloat16_keeps_its_bits_and_its_word() -> None:
    """T36."""
    raw = np.array([0x3F80, 0xC000], dtype="<u2").tobytes()
    given = decode_array("x", "BF16", (2,), memoryview(raw))
    assert given.tobytes() == raw
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    word, sent = encode_array("x", np.array([1.0, -2.0], dtype=ml_dtypes.bfloat16))
    assert (word, bytes(sent)) == ("BF16", raw)


def test_an_array_without_a_datatype_is_refused() -> None:
    with pytest.raises(BadTensor, match="complex128"):
        encode_array("x", np.zeros(2, dtype=np.complex128))
    with pytest.raises(BadTensor, match="element 0 is int"):
        encode_array("x", np.array([3], dtype=object))


def test_wanted_outputs_and_deadline_are_in_the_request() -> None:
    body = encode_request({"x": np.zeros(2, np.float32)}, ["y"], "mine", {"timeout_ms": 5})
    head = json.loads(body.pieces[0])
    assert head["id"] == "mine"
    assert head["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert head["parameters"] == {"binary_data_output": True, "timeout_ms": 5}
    assert body.nbytes == body.json_nbytes + 8


def test_one_array_goes_to_the_only_input(fake: FakeGateway) -> None:
    fake.routes["POST", "/v2/models/centerface/infer"] = echo
    with din.Client(fake.url) as client:
        answer = client.infer("centerface", np.zeros(3, np.float32))
    assert list(answer.outputs) == ["input.1"]


def test_an_answer_whose_sizes_lie_is_an_internal_error() -> None:
    with pytest.raises(Internal, match="came with 3 bytes"):
        decode_array("x", "FP32", (1,), memoryview(b"abc"))
    with pytest.raises(Internal, match="cut short"):
        decode_array("x", "BYTES", (1,), memoryview(b"\xff\x00\x00\x00a"))


@pytest.mark.parametrize(
    "error",
    [BadTensor("a", hint="b"), CannotPlace("a"), Busy("a"), TooLarge("a"), DeadlineExceeded("a")],
    ids=lambda each: type(each).__name__,
)
def test_errors_of_the_gateway_come_out_as_themselves(fake: FakeGateway, error: Any) -> None:
    fake.routes["GET", "/api/v1/nodes"] = failing(error)
    with din.Client(fake.url) as client, pytest.raises(type(error)) as caught:
        client.nodes()
    assert (caught.value.message, caught.value.hint) == (error.message, error.hint)


def test_an_oip_error_is_read_from_its_sibling_key(fake: FakeGateway) -> None:
    body = {"error": "text", "din": {"code": "DIN-110", "message": "wrong dtype", "hint": "h"}}
    fake.routes["POST", "/v2/models/m/infer"] = lambda _: Reply(400, json.dumps(body).encode())
    with din.Client(fake.url) as client, pytest.raises(BadTensor, match="wrong dtype"):
        client.infer("m", {"x": np.zeros(1, np.float32)})


def test_an_answer_of_something_else_is_told_apart(fake: FakeGateway) -> None:
    fake.routes["GET", "/api/v1/nodes"] = lambda _: Reply(500, b"<html>proxy</html>")
    with din.Client(fake.url) as client, pytest.raises(Internal, match="without an error of DIN"):
        client.nodes()
    fake.routes["GET", "/api/v1/nodes"] = lambda _: Reply(200, b'{"items": 3}')
    with din.Client(fake.url) as client, pytest.raises(Internal, match="this version of DIN"):
        client.nodes()


def test_no_gateway_is_said_with_its_address_and_what_to_do() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with din.Client(url) as client, pytest.raises(Unreachable) as caught:
            client.nodes()
    assert caught.value.message.startswith(f"no gateway answered at {url} (Connection refused)")
    assert "din up" in caught.value.hint


def test_a_silent_gateway_elsewhere_is_looked_for_there_and_not_started_here() -> None:
    # 0.0.0.0 is no loopback by its name, and this machine by its route: nothing leaves it.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"https://0.0.0.0:{probe.getsockname()[1]}"
        with din.Client(url) as client, pytest.raises(Unreachable) as caught:
            client.nodes()
    assert "firewall" in caught.value.hint
    assert "start one" not in caught.value.hint


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x:port"])
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not usable"):
        Connection(url)


def test_a_get_on_a_connection_that_died_is_sent_again_once(fake: FakeGateway) -> None:
    good = fake.routes["GET", "/api/v1/nodes"]
    with din.Client(fake.url) as client:
        client.nodes()
        answers = iter([Reply(0, None), good(fake.seen[-1])])
        fake.routes["GET", "/api/v1/nodes"] = lambda _: next(answers)
        assert len(client.nodes().items) == 2
        fake.routes["GET", "/api/v1/nodes"] = lambda _: Reply(0, None)
        before = len(fake.seen)
        with pytest.raises(Unreachable, match="broke"):
            client.nodes()
    assert len(fake.seen) - before == 2


def test_a_registration_is_never_sent_twice(fake: FakeGateway) -> None:
    fake.routes["POST", "/api/v1/models"] = lambda _: Reply(0, None)
    with din.Client(fake.url) as client:
        client.nodes()
        with pytest.raises(Unreachable):
            client.register(RegisterModel(model_id="m", source_sha256="00"))
    assert sum(seen.method == "POST" for seen in fake.seen) == 1


def test_a_gateway_that_does_not_answer_in_time_is_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connection = Connection(f"127.0.0.1:{port}")
        with pytest.raises(DeadlineExceeded, match=r"no answer in 0\.05 s"):
            connection.request("GET", "/", timeout_ms=50)
        connection.close()


def test_a_refusal_that_comes_before_the_body_was_read_is_heard() -> None:
    body = b'{"error":{"code":"DIN-140","message":"too large","hint":""}}'
    head = b"HTTP/1.1 413 X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)

    def refuse(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(1024)
            peer.sendall(head + body)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse, args=(server,))
        thread.start()
        with (
            din.Client(f"http://127.0.0.1:{server.getsockname()[1]}") as client,
            pytest.raises(TooLarge, match="too large"),
        ):
            client.infer("m", bytes(4_000_000))
        thread.join()


def test_bytes_that_the_store_has_are_not_sent(fake: FakeGateway, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"model" * 100_000)
    shown: list[tuple[int, int]] = []
    with din.Client(fake.url) as client:
        sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
        target = f"/api/v1/artifacts/{sha256}"
        fake.routes["PUT", target] = lambda _: Reply(201, b"{}")
        assert client.upload(model, lambda sent, total: shown.append((sent, total))) == sha256
        assert fake.seen[-1].body == model.read_bytes()
        assert shown[-1] == (500_000, 500_000)
        fake.routes["HEAD", target] = lambda _: Reply(200, b"")
        client.upload(model)
    assert [seen.method for seen in fake.seen] == ["HEAD", "PUT", "HEAD"], "it is not large"


class Store:
    """Takes uploads as a gateway does; each listed PUT ends the connection after so many bytes."""

    def __init__(self, fake: FakeGateway, data: bytes, breaks: list[int], here: bytes) -> None:
        self.data, self.breaks, self.here = data, breaks, here
        self.starts: list[int] = []
        target = f"/api/v1/artifacts/{hashlib.sha256(data).hexdigest()}"
        fake.routes["PUT", target] = self.put
        fake.routes["GET", f"{target}/upload"] = self.stands

    def stands(self, seen: Seen) -> Reply:
        return document({"nbytes_received": len(self.here)})(seen)

    def put(self, seen: Seen) -> Reply:
        text = seen.headers.get("content-range", "bytes 0-")
        start = int(text.removeprefix("bytes ").partition("-")[0])
        self.starts.append(start)
        if start and start != len(self.here):
            return failing(Conflict("stands elsewhere"))(seen)
        whole = self.here[:start] + seen.body
        if self.breaks:
            self.here = whole[: self.breaks.pop(0)]
            return Reply(200, None)
        if whole != self.data:
            self.here = b""
            return failing(UsageError("other bytes"))(seen)
        self.here = whole
        return Reply(201, b"{}")


@pytest.mark.parametrize(
    ("breaks", "here", "starts"),
    [
        ([], 0, [0]),
        ([], 700_000, [700_000]),
        ([900_000], 0, [0, 900_000]),
        ([900_000, 1_500_000], 0, [0, 900_000, 1_500_000]),
        ([0, 0], 0, [0, 0, 0]),
    ],
)
def test_an_upload_that_breaks_off_goes_on_where_it_stands(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    breaks: list[int], here: int, starts: list[int],
) -> None:  # fmt: skip
    monkeypatch.setattr("din.client.uploads.PAUSE_S", 0)
    data = bytes(range(250)) * 8_000
    store = Store(fake, data, breaks, data[:here])
    path = tmp_path / "weights.bin"
    path.write_bytes(data)
    shown: list[tuple[int, int]] = []
    with din.Client(fake.url) as client:
        client.upload(path, lambda sent, total: shown.append((sent, total)))
    assert store.here == data
    assert store.starts == starts
    assert shown[-1] == (len(data), len(data))
    assert shown[0][0] > here


def test_what_was_there_of_another_file_is_sent_over_once(
    fake: FakeGateway, tmp_path: Path
) -> None:
    data = bytes(2_000_000)
    store = Store(fake, data, [], b"of somebody else")
    path = tmp_path / "weights.bin"
    path.write_bytes(data)
    with din.Client(fake.url) as client:
        client.upload(path)
    assert store.starts == [len(b"of somebody else"), 0]


def test_an_upload_that_never_gets_further_is_given_up(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("din.client.uploads.PAUSE_S", 0)
    data = bytes(2_000_000)
    store = Store(fake, data, [1000] * 50, b"")
    path = tmp_path / "weights.bin"
    path.write_bytes(data)
    with din.Client(fake.url) as client, pytest.raises(Unreachable):
        client.upload(path)
    assert len(store.starts) == TRIES_MAX + 2


def test_an_upload_says_what_its_registration_will_say(fake: FakeGateway, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"m")
    target = f"/api/v1/artifacts/{hashlib.sha256(b'm').hexdigest()}"
    fake.routes["PUT", target] = lambda _: Reply(201, b"{}")
    with din.Client(fake.url) as client:
        client.upload(model, encrypt=True)
        client.upload(model, encrypt=False)
    sent = [seen.path for seen in fake.seen if seen.method == "PUT"]
    assert sent == [f"{target}?encrypt=true", f"{target}?encrypt=false"]


def test_the_control_calls_decode_what_they_get(fake: FakeGateway) -> None:
    with din.Client(fake.url) as client:
        assert client.gateway().cluster == "test"
        assert client.node("edge-gpu-01").profile is not None
        assert client.models().items[0].model_id == "centerface"
        assert client.model("centerface").manifest is not None
        assert client.plan("centerface").placements[0].node == "edge-gpu-01"
        assert client.traces(2).items[0].request_id == "req-8a3f2b1c"
        assert client.trace("req-8a3f2b1c").status == "completed"
        assert client.remove("centerface").model_id == "centerface"
        assert client.drain("3f9a000000000001").status == "draining"
        assert client.undrain("3f9a000000000001").status == "ready"
        assert client.lift("3f9a000000000001").status == "ready"
        with pytest.raises(NotFound):
            client.trace("nope")


def test_the_gateway_comes_from_the_environment(
    fake: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIN_GATEWAY", fake.url)
    with din.Client() as client:
        assert client.url == fake.url


def test_a_file_that_is_not_there_is_the_callers_mistake(fake: FakeGateway) -> None:
    with din.Client(fake.url) as client, pytest.raises(UsageError, match="cannot be read"):
        client.infer("m", "/nowhere/photo.jpg")


def test_the_package_shows_what_it_offers() -> None:
    assert dir(din) == ["Client", "Inference", "__version__", "errors", "read_result"]
    assert din.errors.NotFound is NotFound
    assert din.Client.__name__ == "Client"
    with pytest.raises(AttributeError, match="no attribute 'NotFound'"):
        _ = din.NotFound


def test_why_an_upload_is_refused_is_told(fake: FakeGateway, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"model")
    target = f"/api/v1/artifacts/{hashlib.sha256(b'model').hexdigest()}"
    fake.routes["HEAD", target] = lambda _: Reply(403, b"")
    fake.routes["PUT", target] = failing(Denied("it needs scope models:write"))
    with din.Client(fake.url) as client, pytest.raises(Denied, match="needs scope models:write"):
        client.upload(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "zero byte"])
def test_what_has_no_end_or_no_name_is_refused_before_it_is_read(
    fake: FakeGateway, tmp_path: Path, kind: str
) -> None:
    pipe = tmp_path / "model.onnx"
    os.mkfifo(pipe)
    path = {"pipe": str(pipe), "device": "/dev/zero", "zero byte": "a\0b"}[kind]
    with din.Client(fake.url) as client:
        for send in (client.upload, client.upload_beside):
            with pytest.raises(UsageError, match=r"no ordinary file|cannot be read"):
                send(path)
    assert fake.seen == []
