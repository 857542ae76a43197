"""Two machines become one network by the words of the README, typed as they stand there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from din.client import Client
from din.domain.views import RegisterModel
from tests.road.conftest import FAILED
from tests.road.islands import islands
from tests.road.machines import HOME, Machine
from tests.road.processes import wait_for
from tests.road.small_models import chain, chain_answer
from tests.strategies import ordered

pytestmark = pytest.mark.system
README = Path(__file__).resolve().parents[2] / "README.md"
TOKEN = re.compile(r"DIN1\.\S+")
X = np.arange(16, dtype=np.float32).reshape(2, 8)
MDNS = ("udp", 5353)


class Step(NamedTuple):
    """One line of the README, and on which machine it is typed."""

    machine: str
    line: str


def steps() -> list[Step]:
    """The lines of the section's blocks; the bold words before a block name the machine."""
    section = README.read_text().partition("## Two machines\n")[2].partition("\n## ")[0]
    found: list[Step] = []
    machine = ""
    for line in section.splitlines():
        if line.startswith("    "):
            found.append(Step(machine, line.partition("#")[0].strip()))
        elif named := re.findall(r"\*\*(.+?)\*\*", line):
            machine = named[-1]
    return found


class Town(NamedTuple):
    """Two machines with a cable between them, and the one's address."""

    gateway: Machine
    other: Machine
    address: str

    def line(self, machine: Machine, start: str, **words: str) -> str:
        """The line of the README that begins so, with its capital words replaced."""
        where = "the gateway's machine" if machine is self.gateway else "the other machine"
        (line,) = (each.line for each in steps() if each.line.startswith(start)
                   and each.machine == where)  # fmt: skip
        for word, text in {"ADDRESS": self.address, **words}.items():
            line = line.replace(word, text)
        return line

    def statuses(self) -> dict[str, str]:
        items = json.loads(self.gateway.must("din node list -o json"))["items"]
        return {each["name"]: each["status"] for each in items}


@pytest.fixture
def town(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Town]:
    with islands() as sea:
        island, far = sea.add("other")
        gateway = Machine("hall-1", sea.enter(sea.gateway), tmp_path / "one")
        other = Machine("hall-2", sea.enter(island), tmp_path / "two")
        try:
            yield Town(gateway, other, f"{far.rpartition('.')[0]}.1")
        finally:
            if request.node.stash.get(FAILED, False):
                looks = "din trace list; din trace show last; din model inspect chain"
                print(gateway.type(looks).stdout, gateway.logs(), other.logs())
            other.type("din node stop hall-2")
            gateway.type("din down")


def test_the_readme_names_these_steps_and_no_others() -> None:
    starts = [(each.machine.removeprefix("the "), each.line.split(" --")[0]) for each in steps()]
    assert starts == [
        ("gateway's machine", "din up"),
        ("gateway's machine", "din token create"),
        ("other machine", "din node join -"),
        ("other machine", "din node start"),
        ("gateway's machine", "din node list"),
        ("gateway's machine", "din node revoke NAME"),
    ]


def test_two_machines_answer_together_by_the_words_of_the_readme(town: Town) -> None:
    gateway, other = town.gateway, town.other
    began = gateway.type(town.line(gateway, "din up"))
    assert began.returncode == 0, began.stdout + began.stderr
    (first,) = TOKEN.findall(began.stderr)
    assert town.line(other, "din node join") in began.stderr
    (second,) = TOKEN.findall(gateway.must(town.line(gateway, "din token create")))
    assert first != second

    other.must(town.line(other, "din node join"), first)
    other.must(town.line(other, "din node start"))
    both = {"hall-1": "ready", "hall-2": "ready"}
    wait_for("both are ready", lambda: town.statuses() == both, 30)
    listed = gateway.must(town.line(gateway, "din node list"))
    assert "hall-1" in listed
    assert "hall-2" in listed
    # Nothing listens off loopback but what the README tells the firewall.
    named = {("tcp", 8443), ("udp", 8443), ("tcp", 8444), ("tcp", 8080)}
    assert gateway.open_ports() - {MDNS} == named
    assert other.open_ports() - {MDNS} == {("tcp", 8080)}

    for machine, sight in ((other, "0.0.0.0:8080 (mutual TLS)"), (gateway, "TLS 1.3 on port 8443")):
        assert sight in machine.type("din doctor").stdout
    the_other_answers(town)

    again = other.type(town.line(other, "din node join") + " --name hall-3", first)
    assert (again.returncode, "was used by node" in again.stderr) == (8, True), again.stderr
    thrown_out(town)


def the_other_answers(town: Town) -> None:
    chain(town.gateway.folder / "chain.onnx")
    town.gateway.must("din model register chain.onnx --model-id chain")
    town.gateway.must("din node drain hall-1")

    def answered_by() -> set[str]:
        # This thread stands in the network of the gateway's machine.
        with Client("http://127.0.0.1:8000") as client:
            answer = client.infer("chain", {"x": X})
        np.testing.assert_array_equal(answer.outputs["y"], chain_answer(X))
        return {each.node for each in answer.execution_trace}

    wait_for("the other machine answers", lambda: answered_by() == {"hall-2"}, 30)
    town.gateway.must("din node undrain hall-1")


def thrown_out(town: Town) -> None:
    town.gateway.must(town.line(town.gateway, "din node revoke", NAME="hall-2"))
    wait_for("it is out", lambda: town.statuses().get("hall-2") in (None, "lost"), 15)
    wait_for("it is told", lambda: "was revoked" in town.other.logs(), 30)
    # Nobody comes back under that name: not by a fresh token either.
    (token,) = TOKEN.findall(town.gateway.must("din token create"))
    town.other.must("din node stop hall-2")
    back = town.other.type(town.line(town.other, "din node join"), token)
    assert (back.returncode, "revoked" in back.stderr) == (8, True), back.stderr
    with Client("http://127.0.0.1:8000") as client:
        answered = wait_for("the other stays away", lambda: client.infer("chain", {"x": X}), 30)
    assert {each.node for each in answered.execution_trace} == {"hall-1"}


def peer_links(machine: Machine) -> int:
    """Connections with a node's port at one end: two for each link, urgent and bulk."""
    lines = machine.must("ss -Htn state established").splitlines()
    ends = [[end.rpartition(":")[2] for end in line.split()[2:4]] for line in lines]
    return sum("8080" in each for each in ends)


def test_the_gateways_own_node_and_a_joined_one_send_tensors_straight(town: Town) -> None:
    gateway, other = town.gateway, town.other
    gateway.must(town.line(gateway, "din up"))
    (token,) = TOKEN.findall(gateway.must("din token create --label side=far"))
    other.must(town.line(other, "din node join"), token)
    other.must(town.line(other, "din node start"))
    both = {"hall-1": "ready", "hall-2": "ready"}
    wait_for("both are ready", lambda: town.statuses() == both, 30)
    assert peer_links(gateway) == 0
    path = chain(gateway.folder / "chain.onnx")
    home, far = {"labels": {"trust": "high"}}, {"labels": {"side": "far"}}
    with Client("http://127.0.0.1:8000") as client:
        order = ordered(partition_points=("add.0", "add.1"), slices=(home, far, home))
        sha256 = client.upload(path)
        client.register(RegisterModel(model_id="chain", source_sha256=sha256, **order))
        wait_for("it is ready", lambda: client.model("chain").state == "ready", 30)
        for _ in range(8):
            answer = client.infer("chain", {"x": X})
            np.testing.assert_array_equal(answer.outputs["y"], chain_answer(X))
            steps = [each.node for each in answer.execution_trace]
            assert steps == ["hall-1", "hall-2", "hall-1"]
        assert client.plan("chain").relays == ()
    assert peer_links(gateway) >= 2
    assert peer_links(other) >= 2
    # Not even a joined node is let in that no deployment names.
    gateway.must("din model remove chain --yes")
    wait_for("no link is left", lambda: peer_links(gateway) == 0, 30)


def own_node(machine: Machine) -> tuple[str, bool, str]:
    """Id, whether it has a certificate, and the digest of its key."""
    (item,) = json.loads(machine.must("din node list -o json"))["items"]
    assert (item["name"], item["status"]) == ("hall-1", "ready")
    trust = machine.folder / ".local/state/din/nodes/hall-1/trust"
    key = trust / "node.key"
    assert key.stat().st_mode & 0o777 == 0o600
    digest = hashlib.sha256(key.read_bytes()).hexdigest()
    return item["node_id"], (trust / "cluster.json").exists(), digest


def test_the_gateways_own_node_stays_itself_with_and_without_other_machines(town: Town) -> None:
    gateway, line = town.gateway, town.line(town.gateway, "din up")
    gateway.must(line)
    first = own_node(gateway)
    assert first[1]
    order = '{"folder": "%s/.local/state/din/nodes/hall-1/trust", "gateways": ["https://%s:8443"]}'
    renewed = gateway.must("python -m din.enrol renew", order % (HOME, town.address))
    assert json.loads(renewed)["membership"]["is_own"] is True
    gateway.must("din down")
    # Not a gateway that ran here is asked for, when none runs.
    assert "http://127.0.0.1:8000" in gateway.type("din node list").stderr
    gateway.must("din up")
    assert own_node(gateway) == (first[0], False, first[2])
    assert gateway.open_ports() - {MDNS} == set()
    gateway.must("din down")
    gateway.must(line)
    assert own_node(gateway) == first
    enrolled = json.loads(gateway.must("din audit list --what node.enrol -o json"))["items"]
    assert len(enrolled) == 1


def test_a_gateway_for_one_machine_is_not_taken_for_one_that_others_may_join(town: Town) -> None:
    town.gateway.must("din up --no-node")
    line = town.line(town.gateway, "din up")
    refused = town.gateway.type(line)
    assert refused.returncode == 7, refused.stderr
    assert "for this machine only" in refused.stderr
    assert "din down" in refused.stderr
    town.gateway.must("din down")
    town.gateway.must(line + " --no-node")
