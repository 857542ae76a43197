"""Files that are sent in several goes, since what sent or took them was killed."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.road.processes import ENVIRONMENT, Network, wait_for

pytestmark = pytest.mark.system
MIB = 1024 * 1024
SIZE = 12 * MIB
SENDER = """
import os, signal, sys
import din

url, path, victim, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
first = []

def shown(sent, total):
    first.append(sent)
    if sent >= limit and victim is not None:
        os.kill(victim or os.getpid(), signal.SIGKILL)

with din.Client(url) as client:
    client.upload(path, shown)
print(first[0])
"""


def send(
    network: Network, path: Path, victim: int = 0, limit: int = 2 * SIZE
) -> subprocess.CompletedProcess[str]:
    """Send a file; from `limit` bytes on a process is killed, 0 = the sender itself."""
    words = [sys.executable, "-c", SENDER, network.url, str(path), str(victim), str(limit)]
    return subprocess.run(
        words, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )


def test_an_upload_goes_on_after_the_sender_and_the_gateway_were_killed(network: Network) -> None:
    network.start_gateway(encrypt_models="never")
    path = network.folder / "weights.bin"
    path.write_bytes(b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(SIZE // 32)))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    def came() -> int:
        with urlopen(f"{network.url}/api/v1/artifacts/{sha256}/upload") as answer:
            return json.load(answer)["nbytes_received"]

    assert send(network, path, limit=6 * MIB).returncode == -signal.SIGKILL
    wait_for("what was sent has come", lambda: came() > MIB)
    # The gateway may still be reading what lies in the socket of the sender that is gone.
    first = came()

    assert network.gateway is not None
    killed = send(network, path, victim=network.gateway.pid, limit=9 * MIB)
    assert killed.returncode == 1
    assert "Unreachable" in killed.stderr
    network.gateway.wait()
    network.start_gateway(encrypt_models="never")
    second = came()
    assert second >= first

    done = send(network, path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > second, "it began where the one before had ended"
    kept = network.folder / "gateway" / "artifacts"
    assert [each.name for each in kept.iterdir()] == [sha256]
    assert (kept / sha256).read_bytes() == path.read_bytes()
