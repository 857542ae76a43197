"""Documents that are made of the code say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.answers import ANSWERS, TARGET, document

from din.api.app import _access_entries, _entries, _examine_entries, _trust_entries
from din.api.limits import FrontLimits

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {
    "GET /metrics",
    "GET /v2",
    "GET /v2/health/live",
    "GET /v2/health/ready",
    "GET /v2/models/{model}",
    "GET /v2/models/{model}/ready",
    "GET /v2/models/{model}/versions/{version}",
    "GET /v2/models/{model}/versions/{version}/ready",
    "GET /api/v1/artifacts/{sha256}",
    "GET /api/v1/artifacts/{sha256}/upload",
    "GET /api/v1/events",
    "GET /api/v1/trust/ca",
}
"""No struct of ours: text, bytes, another protocol's words, or a stream of what is there."""


def routes() -> set[str]:
    """Every route with GET, as the application has them."""
    found = [
        *_entries(None, None, FrontLimits()),
        *_trust_entries(None),
        *_examine_entries(None, None, FrontLimits()),
        *_access_entries(None),
    ]
    return {f"{method} {path}" for method, path, _, _ in found}


def test_every_field_of_every_answer_is_in_the_document() -> None:
    assert TARGET.read_text() == document(), "write it anew: python scripts/answers.py"


def test_every_route_that_answers_to_get_is_in_the_document() -> None:
    all_routes = routes()
    assert {each for each in all_routes if each.startswith("GET ")} - OTHERS <= set(ANSWERS)
    assert set(ANSWERS) | OTHERS <= all_routes


def test_links_of_the_document_lead_somewhere() -> None:
    text = document()
    places = {
        title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", text, re.MULTILINE)
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert links
    assert links <= places
    assert len(places) == len(re.findall(r"^## ", text, re.MULTILINE))
