"""`din doctor` as a whole: rows, fixes, exit codes, and what it hears from a gateway."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from din.cli import doctor_network
from din.cli.doctor_gateway import audit_row, clock_row, keys_row
from din.cli.doctor_machine import check_sandbox
from din.domain.audit import AuditCheck
from din.domain.gateway_view import GatewayView, SlicingCacheView
from din.domain.keys import KeyList, KeyView
from din.domain.views import ModelList
from din.errors import Denied, Unauthenticated
from tests.cli.conftest import Run
from tests.client.fake_gateway import (
    FakeGateway,
    Reply,
    bare_node,
    document,
    failing,
    model_view,
    node_list,
    node_view,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC)
WHOLE = AuditCheck(is_whole=True, first_seq=1, last_seq=3, head_sha256="ab" * 32)
GATEWAY = GatewayView(
    gateway_id="g1",
    cluster="test",
    version="0.1.0",
    pid=1,
    state_path="/s",
    discovery_mode="auto",
    nodes=2,
    models=1,
)


def key(name: str, **changes: Any) -> KeyView:
    facts: dict[str, Any] = {
        "id": "0a0b0c0d",
        "name": name,
        "tenant": "default",
        "scopes": ("infer",),
        "state": "active",
        "created_at": NOW.isoformat(),
        "created_by": "local",
        "expires_at": (NOW + timedelta(days=30)).isoformat(),
    }
    return KeyView(**{**facts, **changes})


@pytest.fixture(autouse=True)
def _trusting(fake: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_network, "BROWSE_MS", 50)
    fake.routes["GET", "/v2/health/live"] = lambda _: Reply(200, b"{}")
    fake.routes["GET", "/api/v1/keys"] = document(KeyList(items=(key("line-4"),)))
    fake.routes["GET", "/api/v1/audit/check"] = document(WHOLE)


def rows(told: Any) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(told.stdout)["items"]}


def test_it_reports_what_it_saw(run: Run) -> None:
    found = rows(run("doctor", "-o", "json"))
    assert found["gateway"]["state"] == "ok"
    assert found["state"]["state"] == "ok"
    assert found["clock"]["state"] == "ok"
    assert found["audit log"]["state"] == "ok"
    assert found["api keys"]["seen"] == "1 of 1 active"
    assert found["nodes"]["state"] == "warn"
    assert "edge-npu-02 is suspect" in found["nodes"]["seen"]
    assert found["tls"]["seen"] == "off: no gateway is on this machine"
    assert "127.0.0.1:8000" in found["listening"]["seen"]
    for each in found.values():
        assert each["seen"]
        assert each["fix"] or each["state"] == "ok"
        assert "\n" not in each["fix"]


def test_warnings_do_not_fail_it(run: Run) -> None:
    told = run("doctor")
    assert "nodes: din node list" in told.stderr
    assert " fail" not in told.stdout
    assert told.exit_code == 0


def test_a_silent_gateway_fails_it(run: Run) -> None:
    told = run("doctor", "--gateway", "http://127.0.0.1:1")
    assert told.exit_code == 1
    assert "checks failed: gateway" in told.stderr
    assert "gateway: din up" in told.stderr


def test_an_insecure_setting_fails_and_names_where_it_comes_from(
    run: Run, fake: FakeGateway, home: Path
) -> None:
    told = run("doctor", env={"DIN_GATEWAY": fake.url, "DIN_INSECURE_NETWORK": "true"})
    assert told.exit_code == 1
    assert "INSECURE" in told.stdout
    assert "insecure switches: unset DIN_INSECURE_NETWORK" in told.stderr
    (home / ".config" / "din").mkdir(parents=True)
    file = home / ".config" / "din" / "config.yaml"
    file.write_text("node: {insecure_network: true}\n")
    found = rows(run("doctor", "-o", "json"))["insecure switches"]
    assert found["state"] == "fail"
    assert found["fix"] == f"sed -i /insecure_network/d {file}"


def test_an_insecure_gateway_fails_wherever_it_runs(run: Run, fake: FakeGateway) -> None:
    insecure = msgspec.structs.replace(GATEWAY, is_insecure_network=True)
    fake.routes["GET", "/api/v1/gateway"] = document(insecure)
    told = run("doctor", "-o", "json")
    assert told.exit_code == 1
    assert "INSECURE" in rows(told)["gateway"]["seen"]


@pytest.mark.parametrize("words", [("node", "list"), ("node", "list", "-o", "json", "-q")])
def test_every_list_of_nodes_shouts_about_an_insecure_gateway(
    run: Run, fake: FakeGateway, words: tuple[str, ...]
) -> None:
    assert "INSECURE" not in run(*words).stderr
    insecure = msgspec.structs.replace(node_list(node_view()), is_insecure_network=True)
    fake.routes["GET", "/api/v1/nodes"] = document(insecure)
    told = run(*words, color=True)
    assert told.stderr.startswith("\x1b[31m\x1b[1mINSECURE")
    assert "INSECURE" not in told.stdout


def test_nodes_that_run_insecurely_are_named_by_lists_and_by_the_doctor(
    run: Run, fake: FakeGateway
) -> None:
    assert rows(run("doctor", "-o", "json"))["insecure nodes"]["state"] == "ok"
    bare = [
        msgspec.structs.replace(node_view(), name=f"edge-{n}", is_insecure_network=n > 1)
        for n in range(8)
    ]
    fake.routes["GET", "/api/v1/nodes"] = document(node_list(*bare))
    told = run("node", "list", color=True)
    assert "\x1b[31m\x1b[1mINSECURE" in told.stderr
    assert "edge-2, edge-3, edge-4, edge-5, edge-6, 1 more" in told.stderr
    assert "edge-1," not in told.stderr
    fake.routes["GET", "/api/v1/nodes/edge-2"] = document(bare[2])
    assert "INSECURE:" in run("node", "inspect", "edge-2").stdout
    fake.routes["GET", "/api/v1/nodes/edge-1"] = document(bare[1])
    assert "INSECURE" not in run("node", "inspect", "edge-1").stdout
    told = run("doctor")
    assert told.exit_code == 1
    assert "insecure nodes: on the machine of edge-2: din node join -" in told.stderr


def test_a_caller_without_a_key_still_sees_clock_and_machine(run: Run, fake: FakeGateway) -> None:
    fake.routes["GET", "/api/v1/gateway"] = failing(Unauthenticated("an API key is needed"))
    told = run("doctor", "-o", "json")
    assert rows(told)["clock"]["state"] == "ok"
    assert rows(told)["gateway"]["fix"] == "din doctor --key-file FILE"
    assert told.exit_code == 0


def test_a_key_without_admin_is_told_what_was_not_seen(run: Run, fake: FakeGateway) -> None:
    fake.routes["GET", "/api/v1/keys"] = failing(Denied("this needs scope admin"))
    found = rows(run("doctor", "-o", "json"))
    assert found["api keys"]["state"] == "warn"
    assert "scope admin" in found["api keys"]["seen"]
    assert "audit log" not in found


def test_a_fleet_that_is_all_ready_is_ok(run: Run, fake: FakeGateway) -> None:
    fake.routes["GET", "/api/v1/nodes"] = document(node_list(node_view()))
    assert rows(run("doctor", "-o", "json"))["nodes"]["state"] == "ok"
    fake.routes["GET", "/api/v1/nodes"] = document(node_list())
    assert rows(run("doctor", "-o", "json"))["nodes"]["seen"] == "none has joined"
    fake.routes["GET", "/api/v1/nodes"] = document(node_list(bare_node()))
    assert rows(run("doctor", "-o", "json"))["nodes"]["state"] == "warn"
    # What was thrown out shall not come back: nobody is to look for it.
    out = node_view(name="edge-2", status="lost", reason="was revoked", is_revoked=True)
    fake.routes["GET", "/api/v1/nodes"] = document(node_list(node_view(), out))
    found = rows(run("doctor", "-o", "json"))["nodes"]
    assert (found["state"], found["seen"]) == ("ok", "1 of 1 ready")


def test_broken_settings_are_a_row_of_their_own(run: Run, home: Path) -> None:
    (home / ".config" / "din").mkdir(parents=True)
    (home / ".config" / "din" / "config.yaml").write_text("clustr: x\n")
    told = run("doctor", "-o", "json")
    assert told.exit_code == 1
    assert "unknown key 'clustr'" in rows(told)["settings"]["seen"]


@pytest.mark.parametrize(
    ("skew_s", "state", "words"),
    [
        (1, "ok", "as the gateway's"),
        (-59, "ok", "59 s behind"),
        (61, "warn", "61 s ahead of"),
        (-600, "warn", "600 s behind"),
        (601, "fail", "601 s ahead of"),
    ],
)
def test_the_clock_is_held_against_the_gateways(skew_s: float, state: str, words: str) -> None:
    row = clock_row(skew_s)
    assert row.state == state
    assert words in row.seen
    assert bool(row.fix) == (state != "ok")


def test_keys_that_never_end_are_named_with_a_key_that_does() -> None:
    row = keys_row((key("a"), key("root", scopes=("admin",), expires_at=None)), NOW)
    assert row.state == "warn"
    assert row.seen == "2 of 2 active; never end: root"
    assert row.fix == "din key create root-2 --scope admin --tenant default --expires 90d"


def test_a_key_that_expired_while_it_was_used_is_named() -> None:
    def expired(name: str, used_days_before: float, ended_days_ago: float) -> KeyView:
        ended = NOW - timedelta(days=ended_days_ago)
        used = ended - timedelta(days=used_days_before)
        return key(name, state="expired", expires_at=ended.isoformat(), used_at=used.isoformat())

    row = keys_row((expired("line-4", 0.1, 1), expired("old", 0.1, 90)), NOW)
    assert row.state == "warn"
    assert row.seen.endswith("their last use: line-4")
    assert keys_row((expired("idle", 60, 1),), NOW).state == "ok"
    assert keys_row((), NOW).seen == "none"


def test_a_broken_audit_chain_is_bad() -> None:
    assert audit_row(WHOLE).state == "ok"
    row = audit_row(msgspec.structs.replace(WHOLE, is_whole=False, problems=("line 2 changed",)))
    assert (row.state, row.fix) == ("fail", "din audit verify")
    assert "line 2 changed" in row.seen


def test_models_that_lie_unsealed_and_should_not_are_named_wherever_one_looks(
    run: Run, fake: FakeGateway
) -> None:
    assert rows(run("doctor", "-o", "json"))["unsealed models"]["state"] == "ok"
    due = model_view(is_seal_due=True)
    fake.routes["GET", "/api/v1/models"] = document(ModelList(items=(due,)))
    fake.routes["GET", "/api/v1/models/centerface"] = document(due)
    row = rows(run("doctor", "-o", "json"))["unsealed models"]
    assert (row["state"], row["fix"]) == ("warn", "din model inspect centerface")
    assert "centerface lies unsealed on every disk" in run("model", "list").stderr
    assert "no: it lies unsealed" in run("model", "inspect", "centerface").stdout


@pytest.mark.parametrize(
    ("hits", "misses", "evictions", "state", "words", "fix"),
    [
        (0, 0, 0, "ok", "nothing was looked up yet", ""),
        (0, 9, 0, "ok", "0 of 9 look-ups", ""),
        (8, 2, 0, "ok", "(0.80)", ""),
        (7, 3, 0, "warn", "below 0.8: too many variants of models", "din model list"),
        (7, 3, 4, "warn", "4 went for lack of room", "--slicing-cache-size-mb 256"),
    ],
)
def test_a_slicing_cache_that_mostly_misses_is_a_warning(
    run: Run,
    fake: FakeGateway,
    hits: int,
    misses: int,
    evictions: int,
    state: str,
    words: str,
    fix: str,
) -> None:
    assert rows(run("doctor", "-o", "json"))["slicing cache"]["seen"] == "off"
    looked_up = hits + misses
    view = SlicingCacheView(
        hits=hits,
        misses=misses,
        hit_ratio=hits / looked_up if looked_up else None,
        evictions=evictions,
        entries=1,
        nbytes=5_000_000,
        nbytes_max=128_000_000,
    )
    with_cache = msgspec.structs.replace(GATEWAY, slicing_cache=view)
    fake.routes["GET", "/api/v1/gateway"] = document(with_cache)
    found = rows(run("doctor", "-o", "json"))["slicing cache"]
    assert found["state"] == state
    assert words in found["seen"]
    assert fix in found["fix"]
    assert (found["fix"] == "") == (state == "ok")


@pytest.mark.parametrize(
    ("told", "state", "words"),
    [
        ('{"level": 3, "reason": ""}', "ok", "level 3 of 3"),
        ('{"level": 2, "reason": "no Landlock in this kernel"}', "ok", "no Landlock"),
        ('{"level": 1, "reason": "no namespaces: denied"}', "warn", "no namespaces: denied"),
        (
            '{"level": 0, "reason": "no filter is known for armv7l"}',
            "fail",
            "on nodes with --insecure alone",
        ),
        ("nonsense", "fail", "could not be tried"),
    ],
)
def test_what_confines_workers_is_told_by_level(
    monkeypatch: pytest.MonkeyPatch, told: str, state: str, words: str
) -> None:
    def run(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], 0, told.encode())

    monkeypatch.setattr(subprocess, "run", run)
    found = check_sandbox()
    assert found.state == state
    assert words in found.seen
    assert bool(found.fix) == (state != "ok")


def test_what_confines_workers_is_tried_for_real() -> None:
    assert check_sandbox().seen.startswith("level ")
