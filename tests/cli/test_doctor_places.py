"""What `din doctor` finds in state directories: modes, certificates, who runs, where it listens."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from din.cli.check import Check, Place, is_running, places, running_gateway
from din.cli.doctor_disk import check_certificate, check_mode, check_places
from din.cli.doctor_gateway import check_insecure, check_listening, check_tls
from din.domain.trust import PeerName
from din.system.bound import Bound, write_bound
from din.system.identity import DirectoryClaim, claim_directory
from din.trust.authority import open_authority
from din.trust.requests import load_key, new_key_pem

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def gateway(tmp_path: Path) -> Place:
    folder = tmp_path / "state" / "din"
    furnish(folder, "gateway")
    return Place("gateway", "gateway", folder)


@pytest.fixture
def node(tmp_path: Path) -> Place:
    folder = tmp_path / "state" / "din" / "nodes" / "edge-1"
    furnish(folder, "node")
    return Place("node", "node edge-1", folder)


@pytest.fixture
def claim(gateway: Place) -> Iterator[DirectoryClaim]:
    with claim_directory(gateway.folder, "din gateway") as claim:
        yield claim


def furnish(folder: Path, role: str, life: timedelta = timedelta(hours=24)) -> None:
    """A state directory as a program with a certificate leaves it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "identity.json").write_text("{}")
    authority = open_authority(folder / "trust", "default", NOW)
    key = new_key_pem()
    key_path = folder / "trust" / f"{role}.key"
    key_path.write_bytes(key)
    key_path.chmod(0o600)
    name = PeerName("default", "gateway" if role == "gateway" else "node", "ab" * 8)
    pem = authority.issue(load_key(key).public_key(), name, NOW, life)
    (folder / "trust" / f"{role}.pem").write_bytes(pem)


def rows(place: Place, now: datetime = NOW) -> dict[str, Check]:
    return {each.name: each for each in check_places([place], now)}


def environment(gateway: Place, **more: str) -> dict[str, str]:
    return {"HOME": str(gateway.folder.parent), "DIN_STATE_DIR": str(gateway.folder), **more}


def test_a_sound_gateway_has_only_good_rows(gateway: Place) -> None:
    found = rows(gateway)
    assert set(found) == {
        "gateway state directory",
        "gateway owner",
        "gateway trust directory",
        "authority key",
        "gateway key",
        "authority",
        "gateway certificate",
    }
    assert {each.state for each in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("name", "path", "state"),
    [
        ("gateway state directory", ".", "warn"),
        ("gateway trust directory", "trust", "fail"),
        ("authority key", "trust/ca.key", "fail"),
        ("gateway key", "trust/gateway.key", "fail"),
    ],
)
def test_what_others_may_read_is_named_with_the_command_that_closes_it(
    gateway: Place, name: str, path: str, state: str
) -> None:
    wide = gateway.folder / path
    wide.chmod(0o755 if wide.is_dir() else 0o644)
    row = rows(gateway)[name]
    assert row.state == state
    assert row.fix == f"chmod go= {wide}"
    assert ("0755" in row.seen) == wide.is_dir()


def test_a_path_that_is_gone_fails_its_row(tmp_path: Path) -> None:
    assert check_mode("key", tmp_path / "none", "fail").state == "fail"


def test_a_running_gateway_with_an_old_certificate_is_late(
    gateway: Place, claim: DirectoryClaim
) -> None:
    del claim
    assert check_certificate(gateway, NOW + timedelta(hours=15)).state == "ok"
    late = check_certificate(gateway, NOW + timedelta(hours=17))
    assert late.state == "warn"
    assert "overdue" in late.seen
    ended = check_certificate(gateway, NOW + timedelta(hours=25))
    assert ended.state == "fail"
    assert ended.seen.endswith("ended 1.0 hours ago")
    assert ended.fix


def test_a_gateway_that_rests_takes_a_new_certificate_at_its_start(gateway: Place) -> None:
    assert check_certificate(gateway, NOW + timedelta(days=30)).state == "ok"


def test_a_node_that_rests_past_its_certificate_renews_it_at_its_start(node: Place) -> None:
    assert check_certificate(node, NOW + timedelta(hours=1)).state == "ok"
    assert check_certificate(node, NOW + timedelta(hours=20)).state == "warn"
    row = check_certificate(node, NOW + timedelta(hours=25))
    assert (row.state, row.fix) == ("warn", f"din node start --name {node.folder.name}")
    assert row.seen.endswith("ended 1.0 hours ago: its next start renews it")


def test_a_certificate_that_has_not_begun_blames_the_clock(node: Place) -> None:
    row = check_certificate(node, NOW - timedelta(days=1))
    assert (row.state, row.fix) == ("fail", "timedatectl set-ntp true")


def test_an_authority_is_warned_of_before_it_ends(gateway: Place) -> None:
    assert rows(gateway, NOW + timedelta(days=3650 - 100))["authority"].state == "ok"
    assert rows(gateway, NOW + timedelta(days=3650 - 10))["authority"].state == "warn"
    assert rows(gateway, NOW + timedelta(days=3651))["authority"].state == "fail"


def test_what_is_no_certificate_is_bad(gateway: Place) -> None:
    for name in ("ca.pem", "gateway.pem"):
        (gateway.trust / name).write_text("nonsense")
    found = rows(gateway)
    assert "is no certificate" in found["authority"].seen
    assert found["gateway certificate"].state == "fail"


def test_all_state_directories_are_found_through_settings(gateway: Place, node: Place) -> None:
    apart = gateway.folder.parent / "apart"
    furnish(apart, "node")
    found = places(environment(gateway, DIN_NODE_STATE_DIR=str(apart)))
    assert [each.name for each in found] == ["gateway", "node edge-1", "node apart"]
    assert found[1] == node
    assert places({"HOME": str(apart / "nobody")}) == []


def test_a_claimed_directory_is_running_and_looking_does_not_claim_it(gateway: Place) -> None:
    assert not is_running(gateway)
    with claim_directory(gateway.folder, "din gateway"):
        assert is_running(gateway)
    assert not is_running(gateway)


def listening(gateway: Place, url: str, *tls_urls: str) -> None:
    facts = {"url": url, "pid": os.getpid(), "tls_urls": tls_urls, "links": ["tcp:127.0.0.1:7000"]}
    (gateway.folder / "gateway.json").write_text(json.dumps(facts))


def test_a_running_gateway_says_where_it_listens(gateway: Place, claim: DirectoryClaim) -> None:
    del claim
    listening(gateway, "http://127.0.0.1:8010", "https://10.0.0.5:8443")
    own = environment(gateway)
    row = check_listening(gateway, own)
    assert row.state == "ok"
    assert "http://127.0.0.1:8010 (this machine only), https://10.0.0.5:8443" in row.seen
    assert check_tls(gateway, own).seen == "TLS 1.3 on port 8443"
    assert check_insecure(gateway, own).state == "ok"


def test_plain_text_off_loopback_fails_also_when_a_flag_allowed_it(
    gateway: Place, claim: DirectoryClaim
) -> None:
    del claim
    listening(gateway, "http://10.0.0.5:8000")
    own = environment(gateway)
    assert check_listening(gateway, own).state == "fail"
    row = check_insecure(gateway, own)
    assert row.state == "fail"
    assert row.fix.startswith("din down && din up --host")


def test_what_a_dead_gateway_left_is_not_believed(gateway: Place) -> None:
    listening(gateway, "http://10.0.0.5:8000")
    assert running_gateway(gateway) is None
    own = environment(gateway, DIN_HOST="10.0.0.9")
    assert "would listen on 127.0.0.1:8000, TLS on 10.0.0.9:8443" in (
        check_listening(gateway, own).seen
    )
    assert check_tls(gateway, own).seen == "TLS 1.3 on port 8443"


@pytest.mark.parametrize(
    ("bound", "state", "seen"),
    [
        (Bound(host="0.0.0.0", port=8080, is_encrypted=True), "ok", "0.0.0.0:8080 (mutual TLS)"),
        (Bound(host="127.0.0.1", port=9, is_encrypted=False), "ok", "(this machine only)"),
        (Bound(host="0.0.0.0", port=8080, is_encrypted=False), "fail", "INSECURE: 0.0.0.0:8080"),
    ],
)
def test_a_running_node_is_shown_with_where_it_listens(
    node: Place, bound: Bound, state: str, seen: str
) -> None:
    write_bound(node.folder, bound)
    assert "node edge-1 listening" not in rows(node), "it does not run"
    with claim_directory(node.folder, "din node edge-1"):
        found = rows(node)["node edge-1 listening"]
        assert (found.state, seen in found.seen) == (state, True), found
        assert (found.fix == "din node join - --name edge-1") == (state == "fail")
        (node.folder / "listening.json").write_text("{")
        assert "node edge-1 listening" not in rows(node)
