"""The table of scopes: every route is in it, and it lets through whom it names."""

from __future__ import annotations

import pytest

from din.access.scopes import NEEDS, is_allowed, needs_of, owns, sees, words_of
from din.api.admission import NEEDS_OF_KIND
from din.api.app import (
    _FRONT_PATHS,
    _access_entries,
    _entries,
    _examine_entries,
    _trust_entries,
)
from din.api.limits import FrontLimits
from din.api.post import target_of
from din.domain.trust import SCOPES, Caller

LOCAL = Caller(kind="local", scopes=frozenset({"admin"}))
STRANGER = Caller(kind="stranger")
NODE = Caller(kind="node", name="a" * 16)
OPEN_PATHS = {"/", "/openapi.json", "/v2/health/live", "/v2/health/ready"}
JOINING_PATHS = {"/api/v1/trust/ca", "/api/v1/trust/join", "/api/v1/trust/renew"}
"""Open, since what they do is decided by a token or by a key that is proven."""


def key(*scopes: str, tenant: str = "default") -> Caller:
    return Caller(kind="key", name="0badcafe", scopes=frozenset(scopes), tenant=tenant)


def routes() -> set[tuple[str, str]]:
    """Every route of the application and of the front."""
    nothing = object()
    entries = _entries(nothing, nothing, FrontLimits()) + _access_entries(nothing)
    entries += _trust_entries(None) + _examine_entries(nothing, nothing, FrontLimits())
    served = {(method, path) for method, path, _, _ in entries}
    return (
        served
        | {("GET", "/"), ("GET", "/openapi.json")}
        | {("POST", path) for path in _FRONT_PATHS}
    )


def test_every_route_names_its_scopes_and_every_row_is_a_route() -> None:
    assert routes() == {row for row in NEEDS if row[0] != "HEAD"}


def test_who_uploads_may_ask_what_is_there_and_read_nothing() -> None:
    uploader, path = key("models:write"), "/api/v1/artifacts/ab"
    asks, reads = needs_of("HEAD", path), needs_of("GET", path)
    assert asks is not None
    assert reads is not None
    assert is_allowed(uploader, asks)
    assert not is_allowed(uploader, reads)
    assert is_allowed(NODE, reads)


def test_what_the_front_serves_needs_what_the_table_says() -> None:
    for path in _FRONT_PATHS:
        target = target_of(path.replace("{model}", "m").replace("{version}", "1").encode())
        assert target is not None
        assert NEEDS_OF_KIND[target.kind] == NEEDS["POST", path]


def test_only_health_the_index_and_joining_are_open_to_strangers() -> None:
    allowed = {path for (_, path), needs in NEEDS.items() if is_allowed(STRANGER, needs)}
    assert allowed == OPEN_PATHS | JOINING_PATHS


def test_local_may_do_everything() -> None:
    assert all(is_allowed(LOCAL, needs) for needs in NEEDS.values())


def test_a_node_may_do_what_nodes_do_and_nothing_else() -> None:
    allowed = {row for row, needs in NEEDS.items() if needs and is_allowed(NODE, needs)}
    assert allowed == {
        ("GET", "/api/v1/gateway"),
        ("POST", "/api/v1/heartbeat"),
        ("POST", "/api/v1/nodes"),
        ("DELETE", "/api/v1/nodes/{node}"),
        ("GET", "/api/v1/gateway"),
        ("HEAD", "/api/v1/artifacts/{sha256}"),
        ("GET", "/api/v1/artifacts/{sha256}"),
    }


def test_a_key_with_admin_is_still_no_node() -> None:
    refused = {row for row, needs in NEEDS.items() if not is_allowed(key("admin"), needs)}
    assert refused == {("POST", "/api/v1/heartbeat"), ("POST", "/api/v1/nodes")}


@pytest.mark.parametrize("scope", [each for each in SCOPES if each != "admin"])
def test_no_lesser_scope_makes_keys_or_reads_the_audit_log(scope: str) -> None:
    for (_, path), needs in NEEDS.items():
        if path.startswith(("/api/v1/keys", "/api/v1/audit")):
            assert not is_allowed(key(scope), needs)


def test_an_infer_key_infers_and_changes_nothing() -> None:
    changes = {("POST", "/infer"), *(row for row in NEEDS if row[1].endswith("/infer"))}
    allowed = {row for row, needs in NEEDS.items() if needs and is_allowed(key("infer"), needs)}
    assert {row for row in allowed if row[0] != "GET"} == changes


def test_the_first_key_needs_no_key_on_this_machine_only() -> None:
    needs = NEEDS["POST", "/api/v1/keys"]
    nobody_here = Caller(kind="local")
    assert is_allowed(nobody_here, needs, is_first=True)
    assert not is_allowed(nobody_here, needs, is_first=False)
    assert not is_allowed(STRANGER, needs, is_first=True)
    assert not is_allowed(key("infer"), needs, is_first=True)


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("HEAD", "/api/v1/artifacts/ab", True),
        ("GET", "/api/v1/models/a%2Fb", True),
        ("GET", "/api/v1/models/a/b", False),
        ("GET", "/api/v1/keys/", False),
        ("GET", "/API/v1/keys", False),
        ("PUT", "/api/v1/keys", False),
        ("GET", "/api/v1/models/", False),
    ],
)
def test_paths_match_as_the_router_matches_them(method: str, path: str, known: bool) -> None:
    assert (needs_of(method, path) is not None) is known


def test_a_tenant_sees_its_own_and_shared_models_and_changes_its_own() -> None:
    mine = key("infer", tenant="line-4")
    assert [sees(mine, each) for each in ("line-4", "default", "line-5")] == [True, True, False]
    assert [owns(mine, each) for each in ("line-4", "default", "line-5")] == [True, False, False]
    assert sees(LOCAL, "line-5")
    assert owns(LOCAL, "line-5")


def test_words_name_the_scopes() -> None:
    assert words_of(NEEDS["POST", "/infer"]) == "infer"
    assert words_of(NEEDS["GET", "/api/v1/models"]) == "infer or models:write"
    assert words_of(NEEDS["POST", "/api/v1/keys"]) == "admin"
