"""The parts that benchmarks are made of: load clients, floor, yardstick, recovery, small models."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from din.bench import models
from din.bench.floor import Floor
from din.bench.load import Loaded, load, shot_at
from din.bench.models import example_of, fetched, session_of, write_identity
from din.bench.network import Network, answers_now, oip_request, wait_for
from din.bench.resting import _back_s
from din.bench.row import Effort, Row
from din.bench.run import run
from din.errors import NotFound, Unavailable

TINY = Effort(rounds=1, window_s=0.1, repeats=5)


class Answerer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status = 200
    seen: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.seen.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Answerer.status, Answerer.seen = 200, []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answerer) as made:
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def request(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def test_load_clients_send_whole_requests_in_turn_and_count_good_answers(
    server: str, tmp_path: Path
) -> None:
    shot = shot_at(server, tmp_path, "two", [request(b"first"), request(b"second")])
    seen = load(shot, 2, 0.2)
    assert seen.answered == len(Answerer.seen) == sum(seen.by_bucket) > 0
    assert seen.failed == {}
    assert set(Answerer.seen) == {b"first", b"second"}
    assert 0 < seen.p50_ms <= seen.p99_ms


def test_load_clients_count_failures_by_cause(server: str, tmp_path: Path) -> None:
    Answerer.status = 503
    shot = shot_at(server, tmp_path, "one", [request(b"x")])
    with pytest.raises(Unavailable, match="503"):
        load(shot, 1, 0.1)


def test_load_on_a_dead_server_says_so(tmp_path: Path) -> None:
    shot = shot_at("http://127.0.0.1:9", tmp_path, "one", [request(b"x")])
    with pytest.raises(Unavailable, match="ConnectionRefusedError"):
        load(shot, 1, 0.1)


def test_the_floor_runs_windows_and_ends_with_its_starter(tmp_path: Path) -> None:
    path = write_identity(tmp_path / "identity.onnx", 1024)
    with Floor(path) as floor:
        one, two = floor.window(1, 0.05), floor.window(2, 0.05)
    assert min(one.rate, two.rate, one.cpu_us, two.cpu_us) > 0


def test_a_floor_whose_model_is_broken_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with Floor(tmp_path / "broken.onnx") as floor, pytest.raises(Unavailable):
        floor.window(1, 0.05)


def test_trivial_models_do_nothing_to_their_input(tmp_path: Path) -> None:
    session = session_of(write_identity(tmp_path / "two.onnx", 4096, 2))
    example = example_of(session)
    assert example.nbytes == 4096
    (given,) = session.run(None, {"x": example})
    assert given.tobytes() == example.tobytes()


def test_a_model_that_was_not_fetched_is_a_row_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "FOLDER", tmp_path)
    with pytest.raises(NotFound):
        fetched("blazeface")
    (row,) = run(["kill"], lambda row: None, TINY)
    assert row.value is None
    assert "fetch_models.py blazeface" in row.how


def recovery(buckets: list[int]) -> Loaded:
    return Loaded(
        answered=sum(buckets),
        seconds=1.0,
        p50_ms=1.0,
        p99_ms=1.0,
        failed={},
        began_ns=0,
        by_bucket=tuple(buckets),
    )


def test_the_rate_is_back_when_it_holds_for_half_a_second() -> None:
    assert _back_s(recovery([10] * 60), 2.0) == 0.0
    assert _back_s(recovery([10] * 40 + [0] * 10 + [10] * 30), 2.0) == pytest.approx(0.45)
    with pytest.raises(Unavailable):
        _back_s(recovery([10] * 40 + [2] * 40), 2.0)


def test_links_and_arena_are_measured_between_real_processes() -> None:
    rows: list[Row] = run(["link", "encrypted-link", "arena"], lambda row: None, TINY)
    assert {row.name for row in rows} >= {"link, tcp, 4 KB", "link, unix, 600 KB"}
    assert {row.name for row in rows} >= {"link, TLS, 600 KB, over plain", "link, TLS, opened"}
    # A few trips may take less processor time than the kernel counts in.
    assert all(row.value or row.name.endswith("processor") for row in rows), rows


@pytest.mark.system
def test_a_network_serves_through_its_agent_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write_identity(tmp_path / "identity.onnx", 1024)
    with Network(direct=False) as network:
        folder = network.folder
        network.start_gateway()
        network.start_node("node-a")
        network.wait_nodes()
        network.register(path, "model", replicas=1)
        assert answers_now(network.url, oip_request("model", "x", example_of(session_of(path))))
        with network.client() as client:
            assert client.traces(1).items[0].path == "relay"
        pids = [process.pid for process in network.processes().values()]
    assert len(pids) >= 4
    assert not folder.exists()
    wait_for("all ended", lambda: None if any(Path(f"/proc/{p}").exists() for p in pids) else True)


def test_a_gateway_that_cannot_start_is_told_with_the_end_of_its_log() -> None:
    with Network(host="192.0.2.1") as network, pytest.raises(Unavailable) as failure:
        network.start_gateway()
    assert "gateway ended with exit code" in failure.value.message
    assert "gateway: " in failure.value.hint


def test_waiting_ends_after_its_time() -> None:
    with pytest.raises(Unavailable, match=r"the moon did not happen within 0\.05 s"):
        wait_for("the moon", lambda: None, 0.05)
