"""Requests without a key: those of this machine's programs, and those that were passed on."""

from __future__ import annotations

import pytest

from din.access.local import passed_on

OURS = "127.0.0.1:8000"


@pytest.mark.parametrize(
    "host", [OURS, "127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:8000", "[::1]", None]
)
def test_a_program_of_this_machine_asks_for_itself(host: str | None) -> None:
    headers = {b"user-agent": b"din"} if host is None else {b"host": host.encode()}
    assert passed_on(headers, is_here=True) == ""


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "gateway", "localhost.evil.example", "127.0.0.1.evil.de",
     "evil.local", "[evil]:1", ":8000", "[", "localhost@evil"],
)  # fmt: skip
def test_no_name_of_somebody_else_leads_here(host: str) -> None:
    assert passed_on({b"host": host.encode()}, is_here=True) == f"it is for the host {host!r}"


def test_on_an_insecure_network_a_gateway_may_be_asked_by_any_name() -> None:
    assert passed_on({b"host": b"gateway.factory"}, is_here=False) == ""


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize(
    ("header", "value", "behind"),
    [
        ("origin", "http://evil.example", "a web page of 'http://evil.example' sent it"),
        ("origin", "null", "a web page of 'null' sent it"),
        ("origin", f"http://{OURS}0", f"a web page of 'http://{OURS}0' sent it"),
        ("sec-fetch-site", "cross-site", "a web page of another site sent it"),
        ("sec-fetch-site", "same-site", "a web page of another site sent it"),
        ("x-forwarded-for", "10.0.0.9", "a proxy passed it on for '10.0.0.9'"),
        ("forwarded", "for=10.0.0.9", "a proxy passed it on for 'for=10.0.0.9'"),
    ],
)
def test_browsers_and_proxies_are_told_apart(
    header: str, value: str, behind: str, is_here: bool
) -> None:
    headers = {b"host": OURS.encode(), header.encode(): value.encode()}
    assert passed_on(headers, is_here=is_here) == behind


def test_a_page_of_the_gateway_itself_and_an_address_that_was_typed_are_ours() -> None:
    ours = {b"host": OURS.encode(), b"origin": b"http://" + OURS.encode()}
    assert passed_on({**ours, b"sec-fetch-site": b"same-origin"}, is_here=True) == ""
    assert passed_on({b"host": OURS.encode(), b"sec-fetch-site": b"none"}, is_here=True) == ""


def test_what_is_shown_of_a_header_is_bounded() -> None:
    told = passed_on({b"origin": b"x" * 10_000 + b"\x1b[2J"}, is_here=True)
    assert len(told) < 200
    assert "\x1b" not in passed_on({b"host": b"\x1b[2J"}, is_here=True)
