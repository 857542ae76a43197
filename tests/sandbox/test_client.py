"""A worker that is a client of one server reaches its port by TCP, and nothing else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from din.sandbox.kernel import landlock_version

CLIENT = """
import json, os, socket, sys
from din.sandbox.enter import Surroundings, confine, leave_others
found = leave_others(keeps_network=True)
own, other = int(sys.argv[1]), int(sys.argv[2])
level = confine(found, port=own)
said = {"level": level}
def tried(name, attempt):
    try:
        attempt()
        said[name] = "open"
    except OSError as error:
        said[name] = "refused"
def connect(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        sock.sendall(b"x")
        assert sock.recv(1) == b"y"
def serve():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
tried("own", lambda: connect(own))
tried("other", lambda: connect(other))
tried("datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
tried("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW))
tried("unix", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
tried("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
tried("serve", serve)
tried("file", lambda: open("/etc/passwd"))
tried("program", lambda: os.execv("/bin/true", ["true"]))
tried("process", os.fork)
os.write(1, json.dumps(said).encode())
"""


def test_a_client_reaches_its_server_and_nothing_else() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        ports = [str(each.getsockname()[1]) for each in (own, other)]
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT, *ports], stdout=subprocess.PIPE
        ) as process:
            own.settimeout(30)
            accepted, _ = own.accept()
            with accepted:
                assert accepted.recv(1) == b"x"
                accepted.sendall(b"y")
                if landlock_version() < 4:
                    other.settimeout(30)
                    late, _ = other.accept()
                    with late:
                        late.sendall(b"y")
                text, _ = process.communicate(timeout=30)
    said = json.loads(text)
    assert said.pop("level") >= 1
    assert said.pop("own") == "open"
    if landlock_version() < 4:
        assert said.pop("other") == "open"
        pytest.skip("this kernel's Landlock knows no ports: other ports are open to clients")
    assert set(said.values()) == {"refused"}, said
