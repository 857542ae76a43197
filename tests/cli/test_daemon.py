"""`din up`, `din down`, `din node start --detach`: whom they start and whom they may stop."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from din.cli import daemon, up
from din.cli.daemon import Record, boot_id, read_record, records_in, start_ticks_of, write_record
from din.cli.start import joining_words
from din.config import GatewayConfig, NodeConfig
from din.errors import Conflict, Unavailable
from tests.cli.conftest import Run

PROGRAM = Path(__file__).with_name("fake_program.py")


STILL_LOOKING = "it still looks for a gateway of cluster line-4; its log says what it tries"


@pytest.fixture
def state(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Programs are stood in for; whatever still runs at the end is ended here."""
    monkeypatch.setattr(
        daemon, "program_command", lambda module: [sys.executable, str(PROGRAM), module]
    )
    monkeypatch.setattr(daemon, "GRACE_S", 5.0)
    folder = home / ".local" / "state" / "din"
    pids: set[int] = set()
    keep = daemon.launch

    def launch(*arguments: object, **options: object) -> object:
        started = keep(*arguments, **options)
        pids.add(started[0].pid)
        return started

    monkeypatch.setattr(daemon, "launch", launch)
    yield folder
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def record_of(path: Path) -> Record:
    found = read_record(path)
    assert found is not None
    return found


def test_up_starts_both_says_where_and_down_stops_both(run: Run, state: Path, port: int) -> None:
    told = run("up", "--port", str(port))
    assert told.exit_code == 0, told.stderr
    assert told.stdout == f"http://127.0.0.1:{port}\n"
    assert "has joined" in told.stderr
    # Commands would ask another gateway here, the one of DIN_GATEWAY.
    assert told.stderr.endswith(
        f"next: din model register MODEL.onnx --gateway http://127.0.0.1:{port}\n"
    )
    records = [record for _, record in records_in(str(state))]
    assert [record.program for record in records] == ["node", "gateway"]

    again = run("up", "--port", str(port))
    assert again.exit_code == 0
    assert "the gateway already runs" in again.stderr
    assert [record for _, record in records_in(str(state))] == records

    would = run("down", "--dry-run")
    assert f"would stop gateway default (process {records[1].pid})" in would.stderr
    assert len(records_in(str(state))) == 2
    assert run("down").exit_code == 0
    assert records_in(str(state)) == []
    assert not list((state / "run").glob("*.json"))
    nothing = run("down")
    assert (nothing.exit_code, nothing.stdout) == (0, "")


def test_up_of_a_gateway_that_asks_for_a_key_says_how_the_first_one_is_made(
    run: Run, port: int, tmp_path: Path
) -> None:
    where = ("--gateway", f"http://127.0.0.1:{port}")
    told = run("up", "--no-node", "--require-key", "--port", str(port))
    assert "next: din key create root --scope admin --save root.key" in told.stderr
    key_file = str(tmp_path / "root.key")
    made = run("key", "create", "root", "--scope", "admin", "--save", key_file, *where)
    assert made.exit_code == 0, made.stderr
    again = run("up", "--no-node", "--port", str(port), env={"DIN_API_KEY_FILE": key_file})
    assert "next: din node start" in again.stderr
    assert run("down").exit_code == 0


def test_up_tells_when_machines_that_came_before_cannot_reach_it(
    run: Run, state: Path, port: int
) -> None:
    assert "other machines" not in run("up", "--no-node", "--port", str(port)).stderr
    assert run("down").exit_code == 0
    (state / "trust").mkdir(mode=0o700, exist_ok=True)
    (state / "trust" / "ca.pem").write_text("of a gateway that ran with --host")
    told = run("up", "--no-node", "--port", str(port))
    assert "din down, then din up --host ADDRESS" in told.stderr
    assert run("down").exit_code == 0


def test_up_without_a_node_tells_how_to_start_one(run: Run, state: Path, port: int) -> None:
    told = run("up", "--no-node", "--port", str(port))
    assert told.stderr.endswith(
        f"next: din node start --name edge-1 --gateway http://127.0.0.1:{port}\n"
    )
    assert run("down").exit_code == 0


def test_a_second_gateway_on_the_same_state_is_a_conflict(run: Run, state: Path, port: int) -> None:
    assert run("up", "--no-node", "--port", str(port)).exit_code == 0
    told = run("up", "--no-node", "--port", "1")
    assert told.exit_code == 7
    assert f"a gateway already runs on state directory {state}" in told.stderr
    assert "hint: stop it with `din down`" in told.stderr
    assert run("down").exit_code == 0


def test_up_waits_for_a_gateway_that_runs_and_does_not_answer(
    run: Run, state: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still, or an earlier `din up` was interrupted."""
    assert run("up", "--port", str(port)).exit_code == 0
    gateway = record_of(state / "run" / "gateway.json")
    monkeypatch.setattr(up, "GATEWAY_WAIT_S", 0.2)
    monkeypatch.setattr(up, "_answering_pid", lambda url: 0)
    told = run("up", "--port", str(port))
    assert told.exit_code == 4
    assert f"process {gateway.pid} but did not answer" in told.stderr
    assert "`din down` stops it" in told.stderr
    assert record_of(state / "run" / "gateway.json") == gateway


def test_up_waits_for_a_node_that_runs_and_has_not_joined(
    run: Run, state: Path, port: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("up", "--port", str(port)).exit_code == 0
    (home / "joined").unlink()
    monkeypatch.setattr(up, "NODE_WAIT_S", 0.3)
    told = run("up", "--port", str(port))
    assert told.exit_code == 4
    assert "has not joined in 0.3 s" in told.stderr


def test_a_port_in_use_is_a_conflict_with_a_hint(run: Run, state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words in (["up"], ["gateway", "start"], ["node", "start", "--name", "a"]):
            told = run(*words, "--port", str(port))
            assert told.exit_code == 7
            assert f"port {port} on 127.0.0.1 is in use" in told.stderr
            assert "--port" in told.stderr


def test_a_program_that_refuses_to_start_says_why(
    run: Run, state: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PROGRAM", "refuse")
    told = run("up", "--port", str(port))
    assert told.exit_code == 7
    assert told.stderr == (
        "error: the gateway did not start: the state directory is in use\nhint: give another\n"
    )
    assert not list((state / "run").glob("*.json"))
    monkeypatch.setenv("FAKE_PROGRAM", "vanish")
    told = run("up", "--port", str(port))
    assert "the gateway did not start: it ended with code 1\n" in told.stderr, (
        "an older run's words"
    )
    monkeypatch.setenv("FAKE_PROGRAM", "break")
    told = run("up", "--port", str(port))
    assert "it ended with code 1; the last it wrote: ModuleNotFoundError: no" in told.stderr


def test_a_node_that_refuses_leaves_the_gateway_running(
    run: Run, state: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PROGRAM", "refuse-node")
    told = run("up", "--port", str(port))
    assert told.exit_code == 7
    assert "the node did not start" in told.stderr
    assert [each.program for _, each in records_in(str(state))] == ["gateway"]
    assert run("down").exit_code == 0


def test_a_program_that_ignores_us_is_killed(
    run: Run, state: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PROGRAM", "stubborn")
    assert run("up", "--no-node", "--port", str(port)).exit_code == 0
    path = state / "run" / "gateway.json"
    assert daemon.stop(path, record_of(path), grace_s=0.2) is False
    assert read_record(path) is None


def test_a_recycled_process_id_is_never_signalled(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        ticks = start_ticks_of(stranger.pid)
        assert ticks is not None
        path = tmp_path / "gateway.json"
        others = (
            Record(pid=stranger.pid, start_ticks=ticks - 1, boot_id=boot_id(), program="gateway"),
            Record(pid=stranger.pid, start_ticks=ticks, boot_id="other boot", program="gateway"),
        )
        for record in others:
            write_record(path, record)
            assert daemon.stop(path, record) is True
            assert stranger.poll() is None
            write_record(path, record)
            assert read_record(path) is None
            assert not path.exists()
        stranger.communicate(b"\n", timeout=10)
        assert stranger.returncode == 0


def test_a_process_that_ended_unwaited_does_not_count_as_running() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks_of(child.pid) is None
    child.wait()


def test_a_process_name_with_parentheses_is_read_right(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(number) for number in range(3, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) S) S {fields.partition(' ')[2]}")
    assert start_ticks_of(7, tmp_path) == 22


@pytest.mark.parametrize("text", ["", "{", '{"pid": "x"}', "\x00"])
def test_a_broken_record_is_taken_away(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(text)
    assert read_record(path) is None
    assert not path.exists()


def test_a_detached_node_runs_until_it_is_stopped(
    run: Run, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("din.cli.start.STARTED_S", 0.2)
    words = ["node", "start", "--name", "edge-1", "--port", "0", "--detach"]
    told = run(*words)
    assert (told.exit_code, told.stdout) == (0, "edge-1\n")
    assert "already runs" in run(*words).stderr
    assert run("down").exit_code == 0
    path = state / "nodes" / "edge-1" / "run" / "node.json"
    assert record_of(path).name == "edge-1"
    assert run("node", "stop", "edge-2").exit_code == 6
    assert run("node", "stop", "edge-1").exit_code == 0
    assert read_record(path) is None
    assert run("node", "stop").exit_code == 2


@pytest.fixture
def became(state: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the process would have become."""
    found: dict[str, object] = {}

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        found.update(module=command[-1], settings=json.loads(environment["DIN_CONFIG_JSON"]))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    return found


GPU_NODE = (
    "node start --name edge-gpu-01 --device-type x86_64-cuda11.8-trt8.6 --cpu-cores 8 "
    "--gpu-memory 6144 --temp-sensor /sys/class/hwmon/hwmon0/temp1_input --port 0"
)
NPU_NODE = (
    "node start --name edge-npu-02 --device-type aarch64-ascend310p-cann6.3 --cpu-cores 4 "
    "--npu-core 2 --disable-temp-monitoring --temp-poll-interval-ms 5000 --port 0 "
    "--label line=4 --memory-mib 512"
)
GATEWAY = (
    "gateway start --port 0 --discovery-mode unicast --scheduler-cache-ttl 300 "
    "--node-heartbeat-interval 1000 --cluster a --slicing-cache-enabled "
    "--slicing-cache-size-mb 256 --slicing-cache-evict-policy lru"
)


def test_the_seeds_two_node_commands_mean_what_they_say(
    run: Run, became: dict[str, object]
) -> None:
    """Surface 97 and 98, literally but for the ports."""
    run(*GPU_NODE.split(), env={})
    assert became["module"] == "din.agent"
    settings = NodeConfig(**became["settings"])
    assert settings.device_type == "x86_64-cuda11.8-trt8.6"
    assert (settings.cpu_cores, settings.gpu_memory_mib) == (8, 6144)
    assert settings.temp_sensor == "/sys/class/hwmon/hwmon0/temp1_input"
    run(*NPU_NODE.split(), env={})
    settings = NodeConfig(**became["settings"])
    assert (settings.npu_core, settings.memory_mib) == (2, 512)
    assert settings.disable_temp_monitoring
    assert settings.temp_poll_interval_ms == 5000
    assert settings.labels == {"line": "4"}


def test_the_gateways_flags_reach_the_gateway(
    run: Run, became: dict[str, object], tmp_path: Path
) -> None:
    """Surface 64 and 102."""
    told = run(*GATEWAY.split(), "--state-dir", f"{tmp_path}/s")
    assert became["module"] == "din.bootstrap.gateway"
    settings = GatewayConfig(**became["settings"])
    assert (settings.node_heartbeat_interval_ms, settings.node_heartbeat_jitter_ms) == (1000, 150)
    assert settings.state_dir == f"{tmp_path}/s"
    assert settings.slicing_cache_enabled
    assert settings.slicing_cache_size_mb == 256
    assert settings.slicing_cache_evict_policy == "lru"
    assert "--scheduler-cache-ttl does nothing" in told.stderr


@pytest.mark.parametrize(
    ("jitter", "exit_code", "text"),
    [("500", 0, ""), ("450", 0, ""), ("700", 0, "0.23 of the interval"),
     ("100", 0, "0.03 of the interval"), ("1500", 2, "half of the interval")],
)  # fmt: skip
def test_a_jitter_outside_its_range_is_warned_of_or_refused(
    run: Run, became: dict[str, object], jitter: str, exit_code: int, text: str
) -> None:
    """The seeds' 500 ms is 0.17 of 3 s: inside. Their rule, 0.15, gives the default of 450."""
    told = run("gateway", "start", "--port", "0", "--node-heartbeat-jitter", jitter)
    assert told.exit_code == exit_code
    assert text in told.stderr
    assert bool(told.stderr) == bool(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("node start --host 10.0.0.1 --port 0", "host 10.0.0.1 is not loopback"),
        ("node start --name Edge_1", "name is 'Edge_1'"),
        ("node start --device-type x86_64--a --name a", "is not of the form"),
        ("node start --label line --name a", "--label 'line' is not NAME=VALUE"),
        ("node start --name a --port 70000", "port is 70000"),
        ("gateway start --policy fastest", "policy is 'fastest'"),
        ("gateway start --tls --insecure-network", "tls and insecure_network are both on"),
        ("up --host 10.0.0.1 --tls --insecure-network", "tls and insecure_network are both on"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    run: Run, became: dict[str, object], words: str, message: str
) -> None:
    told = run(*words.split())
    assert told.exit_code == 2
    assert message in told.stderr
    assert became == {}


def test_plain_text_off_loopback_needs_its_flag(run: Run, became: dict[str, object]) -> None:
    run("gateway", "start", "--host", "0.0.0.0", "--port", "0", "--insecure-network")
    assert became["module"] == "din.bootstrap.gateway"


def test_a_state_directory_that_cannot_be_made_is_said(run: Run, state: Path, port: int) -> None:
    told = run("up", "--no-node", "--port", str(port), "--state-dir", "/proc/nothing/here")
    assert told.exit_code == 4
    assert "cannot be started below /proc/nothing/here" in told.stderr


def test_a_state_directory_of_somebody_else_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    told = run("down", "--state-dir", "/srv/other")
    assert told.exit_code == 8
    assert "error: /srv/other/run cannot be read: Permission denied" in told.stderr


def test_two_commands_do_not_start_programs_of_one_directory_at_once(tmp_path: Path) -> None:
    """The loser of a race would take the winner's record for its own and leave an orphan."""
    said: list[str] = []
    with (
        daemon.turn(str(tmp_path), said.append),
        pytest.raises(Conflict),
        daemon.turn(str(tmp_path), said.append, wait_s=0.01),
    ):
        pass
    assert said == ["another `din` starts or stops programs here; waiting for it"]
    with daemon.turn(str(tmp_path), said.append):
        assert len(said) == 1


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (
            '{"event":"joined","gateway":"http://10.0.0.5:8000","how":"unicast"}',
            "it joined http://10.0.0.5:8000, unicast",
        ),
        ('{"event":"multicast_found_nothing"}', STILL_LOOKING),
        ("not a line of ours", STILL_LOOKING),
        (
            '{"event":"not_joined","reason":"the node was revoked","hint":"join anew"}',
            "it has not joined yet: the node was revoked; join anew",
        ),
    ],
)
def test_a_detached_node_tells_whom_it_joined_since_its_start(last: str, words: str) -> None:
    before = '{"event":"joined","gateway":"http://10.0.0.9:8000","how":"unicast"}'
    assert joining_words([before, '{"event":"started"}', last], "line-4") == words


def test_a_detached_node_tells_what_the_gateway_warned_it_of() -> None:
    lines = [
        '{"event":"joined","gateway":"http://10.0.0.5:8000","how":"unicast"}',
        '{"event":"registration_warning","warning":"the name is taken"}',
        '{"event":"registration_warning","warning":"its clock is ahead"}',
    ]
    assert joining_words(lines, "line-4").splitlines() == [
        "it joined http://10.0.0.5:8000, unicast",
        "warning: the name is taken",
        "warning: its clock is ahead",
    ]


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_program_without_a_record_is_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    """A full disk, or Ctrl-C just then: `din down` could not find it."""
    started: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    def failing(path: Path, record: Record) -> None:
        raise fault

    monkeypatch.setattr(daemon.subprocess, "Popen", Started)
    monkeypatch.setattr(daemon, "write_record", failing)
    with pytest.raises(Unavailable if isinstance(fault, OSError) else KeyboardInterrupt):
        daemon.launch(
            "din.bootstrap.gateway",
            GatewayConfig(port=0, state_dir=str(tmp_path)),
            name="x",
            url="",
            state_dir=str(tmp_path),
            record_name="gateway",
        )
    assert started[0].returncode == -signal.SIGKILL
