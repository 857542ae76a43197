"""What a stranger's model could try in a worker, tried by an ordinary user who is confined so."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from din.sandbox.kernel import landlock_version

ATTACKS = 23


@pytest.fixture
def targets() -> Generator[list[str]]:
    """Things to reach, open to everybody, and how the program is told of them."""
    with ExitStack() as stack:
        folder = Path(f"/tmp/din-attack-{os.getpid()}")  # where an ordinary user reaches it
        folder.mkdir()
        stack.callback(folder.rmdir)
        for name in ("secret", "model"):
            path = folder / name
            path.write_text("s")
            path.chmod(0o666)
            stack.callback(path.unlink)
        folder.chmod(0o777)
        stack.callback((folder / "new").unlink, missing_ok=True)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        for address in (f"\0din-attack-{os.getpid()}", str(folder / "socket")):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        (folder / "socket").chmod(0o777)
        stack.callback((folder / "socket").unlink)
        yield [
            *("--folder", str(folder), "--name", f"din-attack-{os.getpid()}"),
            *("--tcp", str(tcp.getsockname()[1]), "--udp", str(udp.getsockname()[1])),
        ]


def attacked(targets: list[str], without: str, role: str = "worker") -> tuple[int, dict[str, str]]:
    program = Path(__file__).with_name("attack.py")
    done = subprocess.run(
        [sys.executable, program, *targets, "--without", without, "--as", role],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["level"], found["met"]


@pytest.mark.parametrize("role", ["worker", "carver"])
@pytest.mark.parametrize("without", ["", "landlock", "namespaces", "namespaces,landlock"])
def test_no_attack_gets_through_whatever_the_kernel_lacks(
    targets: list[str], without: str, role: str
) -> None:
    level, met = attacked(targets, without, role)
    assert len(met) == ATTACKS
    assert [name for name, how in met.items() if how == "OPEN"] == []
    if "namespaces" in without:
        assert level == 1
    elif "landlock" in without or not landlock_version():
        assert level in {1, 2}  # 1 where this machine gives no user namespaces
    else:
        assert level in {1, 3}


def test_the_same_attacks_get_through_where_nothing_is_given_up(targets: list[str]) -> None:
    """Else the test above would prove nothing."""
    level, met = attacked(targets, "everything")
    assert level == -1
    opened = {name for name, how in met.items() if how == "OPEN"}
    assert opened >= {
        *("read_passwd", "read_secret", "write_model", "write_tmp", "tcp", "udp", "unix_abstract"),
        *("unix_path", "exec", "exec_direct", "forkbomb", "threadbomb", "memhog", "fdhog"),
    }
