"""`din doctor` on machines where something is broken for real: each in namespaces of its own."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.road.processes import ENVIRONMENT

DIN = Path(sys.executable).with_name("din")
PARTS = ("unshare", "--map-root-user", "--mount", "--net")
PLAIN = ("sh", "-c", 'exec "$0" doctor -o json')
UP = "ip link set lo up"
TAKER = (
    "import os,socket,time;p=os.getppid();"
    "u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);u.bind(('',5353));"
    "t=socket.socket();t.bind(('127.0.0.1',8000));t.listen(4);"
    "print('taken',flush=True);"
    "[time.sleep(0.1) for _ in range(600) if os.getppid()==p]"
)

Rows = dict[str, dict[str, str]]


def see(home: Path, script: str, **variables: str) -> Rows:
    """Rows of the doctor on a machine that the script has broken."""
    return told(home, [*PARTS, "sh", "-ec", f'{script}; exec "$0" doctor -o json'], variables)


def told(home: Path, words: list[str], variables: dict[str, str]) -> Rows:
    done = subprocess.run(
        [*words, str(DIN)],
        env={**ENVIRONMENT, "HOME": str(home), "TMPDIR": str(home), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        pytest.skip(f"no namespaces here: {done.stderr.strip()[-300:]}")
    found: Rows = {each["name"]: each for each in json.loads(done.stdout)["items"]}
    has_failed = any(each["state"] == "fail" for each in found.values())
    assert done.returncode == int(has_failed)
    for each in found.values():
        assert each["seen"]
        assert (each["fix"] == "") == (each["state"] == "ok") or each["name"] == "accelerators"
    return found


def test_a_machine_without_any_network_is_told_apart_from_a_broken_one(tmp_path: Path) -> None:
    found = see(tmp_path, "true")
    for name in ("multicast", "announcements", "unicast"):
        assert found[name]["state"] == "warn", name
    for name in ("settings", "versions", "memory", "state"):
        assert found[name]["state"] == "ok", name
    found = see(tmp_path, UP)
    assert found["multicast"]["state"] == "ok"
    assert found["gateway ports"]["seen"] == "free: 127.0.0.1:8000"
    assert found["node port"]["seen"] == "free: 127.0.0.1:8080"


def test_a_machine_with_ipv6_only_is_told_which_address_is_not_there(tmp_path: Path) -> None:
    broken = f"{UP}; ip address del 127.0.0.1/8 dev lo"
    found = see(tmp_path, broken)
    assert found["gateway ports"]["state"] == "fail"
    assert "127.0.0.1:8000" in found["gateway ports"]["seen"]
    found = see(tmp_path, broken, DIN_HOST="::1", DIN_NODE_HOST="::1")
    assert found["gateway ports"]["state"] == "ok"
    assert found["node port"]["state"] == "ok"


def test_taken_ports_are_named_with_the_command_that_shows_who_has_them(tmp_path: Path) -> None:
    script = f'{UP}; mkfifo p; {sys.executable} -c "{TAKER}" > p 2> /dev/null & read taken < p'
    found = see(tmp_path, f"cd {tmp_path}; {script}")
    assert found["gateway ports"]["state"] == "fail"
    assert found["gateway ports"]["fix"] == "ss -ltnp 'sport = :8000'"
    assert found["announcements"]["state"] == "warn"
    assert found["announcements"]["fix"] == "ss -lunp 'sport = :5353'"
    # What has port 8000 takes connections and never answers.
    assert (found["gateway"]["state"], found["unicast"]["state"]) == ("fail", "ok")
    assert "no answer in 4 s" in found["gateway"]["seen"]


def test_a_full_disk_and_one_that_may_not_be_written_fail(tmp_path: Path) -> None:
    full = "mount -t tmpfs -o size=64k none $HOME; head -c 99999 /dev/zero > $HOME/x || true"
    found = see(tmp_path, f"{UP}; {full} 2>/dev/null", TMPDIR="/tmp")
    assert (found["state"]["state"], found["temporary files"]["state"]) == ("fail", "ok")
    assert "is full" in found["state"]["seen"]
    state = tmp_path / "state"
    state.mkdir()
    found = see(tmp_path, f"{UP}; {full} 2>/dev/null", DIN_STATE_DIR="/tmp/din-none")
    assert (found["state"]["state"], found["temporary files"]["state"]) == ("ok", "fail")
    found = see(tmp_path, f"{UP}; mount -t tmpfs -o ro none $HOME", TMPDIR="/tmp")
    assert (found["state"]["state"], "Read-only" in found["state"]["seen"]) == ("fail", True)


def test_a_machine_that_shows_nothing_of_its_hardware_gets_rows_for_all_of_it(
    tmp_path: Path,
) -> None:
    found = see(tmp_path, f"{UP}; mount -t tmpfs none /sys")
    assert found["temperature"]["state"] == "warn"
    found = see(tmp_path, f"{UP}; mount -t tmpfs none /proc")
    assert "/proc/meminfo" in found["memory"]["seen"]
    assert found["memory"]["state"] == "warn"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has nothing to give up")
def test_a_user_without_rights_is_told_what_is_closed_to_it(tmp_path: Path) -> None:
    """Without any capability root is a user like others, to files of others."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.chown(closed, 12345, 12345)
    words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *PLAIN]
    for name in ("din", "none/yet"):
        found = told(tmp_path, words, {"DIN_STATE_DIR": str(closed / name)})
        assert (found["state"]["state"], found["temporary files"]["state"]) == ("fail", "ok")
        assert "Permission denied" in found["state"]["seen"]
    found = told(tmp_path, words, {"DIN_STATE_DIR": str(tmp_path / "din")})
    assert found["state"]["state"] == "ok"
    assert found["sandbox"]["seen"].startswith("level ")


def test_a_gateway_that_answers_byte_by_byte_does_not_hold_the_doctor_for_ever(
    tmp_path: Path,
) -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def drip() -> None:
            taken, _ = silent.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
                while not ended.wait(0.5):
                    try:
                        taken.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found = told(tmp_path, [*PLAIN], {"DIN_GATEWAY": url})
        ended.set()
    assert found["gateway"]["state"] == "fail"
    assert "no answer in 4 s" in found["gateway"]["seen"]
