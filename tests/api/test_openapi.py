"""GET /openapi.json, and whether a server of ours keeps what it says there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from api_harness import World, asked_in_turn, with_server
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from din.access.scopes import NEEDS
from din.api.openapi import OPERATIONS, openapi_document

CHECKS = [
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
NOT_ASKED = {"/api/v1/events": "it never ends", "/api/v1/nodes": "its body is no JSON but TLV"}
SHORT, LONG = 2, 100


def test_every_route_is_described() -> None:
    assert set(OPERATIONS) == {row for row in NEEDS if row[0] != "HEAD"}
    document = openapi_document([(*row, "x") for row in OPERATIONS])
    ids = {name for path in document["paths"].values() for name in path}
    assert ids == {"get", "post", "put", "delete"}
    refs = str(document).split("#/components/schemas/")[1:]
    assert {each.split("'")[0] for each in refs} <= set(document["components"]["schemas"])


def test_the_document_names_what_the_gateway_serves(tmp_path) -> None:
    (answer, page), _ = asked_in_turn(tmp_path, ("GET", "/openapi.json"), ("GET", "/"))
    document = answer.json()
    assert document["openapi"] == "3.1.0"
    for path, methods in document["paths"].items():
        for method in methods:
            if path != "/":
                assert f"{method.upper():6} {path} " in page.body.decode()


def complaints(world: World, document: dict[str, Any], count: int) -> list[str]:
    """Of requests made of the document, right and wrong ones, to every route."""
    url = f"http://127.0.0.1:{world.server.port}"
    schema = schemathesis.openapi.from_dict(document)
    operations = (each.ok() for each in schema.get_all_operations())
    asked = (each for each in operations if each.path not in NOT_ASKED)
    return [line for operation in asked for line in complaints_of(operation, url, count)]


def complaints_of(operation: Any, url: str, count: int) -> list[str]:
    found: list[str] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        answer = case.call(base_url=url, timeout=30)
        if answer.status_code == 500:  # 502 to 504 tell of nodes, and of what is switched off
            found.append(f"{case.as_curl_command()}: {answer.text}")
        case.validate_response(answer, checks=CHECKS)

    try:
        ask()
    except FailureGroup as group:
        found += [f"{operation.method} {operation.path}: {each}" for each in group.exceptions]
    return found


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_answers_are_what_the_document_says(tmp_path, count: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        document = (await client.ask("GET", "/openapi.json")).json()
        assert await asyncio.to_thread(complaints, world, document, count) == []
        assert (await client.ask("GET", "/v2/health/live")).status == 200

    with_server(tmp_path, test, seconds_max=3000)
