"""Which gateway a command asks that names none, and by which authority it knows one."""

import json
import os
from pathlib import Path

import pytest

from din.cli.asking import ask, default_gateway
from din.domain.enrolment import Membership
from din.errors import Denied
from din.system.identity import claim_directory
from din.transport.membership import write_membership
from tests.cli.test_doctor_places import NOW, furnish

SECURE = "https://10.99.0.1:8443"


@pytest.fixture
def state(home: Path) -> Path:
    return home / ".local" / "state" / "din"


def join(folder: Path, url: str = SECURE) -> None:
    furnish(folder, "node")
    milliseconds = int(NOW.timestamp() * 1000)
    write_membership(
        folder / "trust",
        Membership(
            cluster="default",
            node_id="ab" * 8,
            gateways=(url,),
            signing_key="",
            begins_ms=milliseconds,
            ends_ms=milliseconds,
        ),
    )


def test_without_anything_it_is_port_8000_here(home: Path) -> None:
    assert default_gateway(os.environ) == "http://127.0.0.1:8000"


def test_the_gateway_that_runs_here_is_asked_wherever_it_listens(state: Path) -> None:
    furnish(state, "gateway")
    join(state / "nodes" / "edge-1")
    facts = {"url": "http://127.0.0.1:8010", "pid": os.getpid()}
    (state / "gateway.json").write_text(json.dumps(facts))
    assert default_gateway(os.environ) == SECURE  # nobody holds the directory: it has ended
    with claim_directory(state, "din gateway"):
        assert default_gateway(os.environ) == "http://127.0.0.1:8010"
        named = {**os.environ, "DIN_GATEWAY": "http://10.0.0.7:8000"}
        assert default_gateway(named) == "http://10.0.0.7:8000"


def test_a_machine_that_has_joined_asks_there_and_knows_the_authority(state: Path) -> None:
    join(state / "nodes" / "edge-1", "https://10.99.0.9:8443")
    join(state / "nodes" / "edge-2")
    (state / "nodes" / "edge-1" / "trust" / "ca.pem").write_text("of another cluster")
    with ask(SECURE) as client:
        assert client.url == SECURE
    with pytest.raises(Denied, match="is no certificate"):
        ask(None)


def test_a_node_whose_membership_cannot_be_read_does_not_stop_a_command(state: Path) -> None:
    join(state / "nodes" / "edge-1")
    (state / "nodes" / "edge-1" / "trust" / "cluster.json").write_text("{")
    assert default_gateway(os.environ) == "http://127.0.0.1:8000"
