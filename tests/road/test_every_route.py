"""Every route of a real gateway, asked with every scope, with none and as a stranger."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from din.access.scopes import NEEDS, OPEN, Needs
from din.domain.trust import SCOPES
from tests.road.processes import Network, post_json
from tests.road.test_join import start

pytestmark = pytest.mark.system
NOBODY = ""
FILLED = {
    "{sha256}": "0" * 64,
    "{node}": "nobody",
    "{key}": "nobody",
    "{token}": "00000000",
    "{model}": "nothing",
    "{version}": "1",
    "{request_id}": "nothing",
}
REFUSED = {401, 403}


class Asker(NamedTuple):
    """A gateway's TLS port and a key of each scope."""

    place: str
    trust: ssl.SSLContext
    keys: dict[str, str]

    def status(self, method: str, path: str, headers: dict[str, str]) -> int:
        """Of one request on a connection of its own, whose answer may never end."""
        connection = http.client.HTTPSConnection(self.place, context=self.trust, timeout=20)
        try:
            connection.request(method, path, b"" if method in ("POST", "PUT") else None, headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def as_scope(self, scope: str, method: str, path: str) -> int:
        """With a key that has this scope alone, or without a key."""
        shown = {"Authorization": f"Bearer {self.keys[scope]}"} if scope else {}
        return self.status(method, path, shown)


@pytest.fixture
def asker(network: Network) -> Asker:
    url = start(network)
    keys = dict[str, str]()
    for scope in SCOPES:
        order = {"name": scope.replace(":", "-"), "scopes": [scope]}
        status, made = post_json(network.url, "/api/v1/keys", order)
        assert status == 201, made
        keys[scope] = made["key"]
    ca_file = network.folder / "gateway" / "trust" / "ca.pem"
    trust = ssl.create_default_context(cafile=str(ca_file))
    trust.check_hostname = False
    return Asker(urlsplit(url).netloc, trust, keys)


def rows() -> Iterator[tuple[str, str, Needs]]:
    """Every row with its path filled in, and HEAD wherever GET is answered."""
    for (method, path), needs in NEEDS.items():
        filled = path
        for name, text in FILLED.items():
            filled = filled.replace(name, text)
        yield method, filled, needs
        if method == "GET" and ("HEAD", path) not in NEEDS:
            yield "HEAD", filled, needs


def test_each_route_lets_in_the_scopes_of_its_row_and_nobody_else(asker: Asker) -> None:
    wrong: list[str] = []
    for method, path, needs in rows():
        assert "{" not in path
        for scope in (*SCOPES, NOBODY):
            status = asker.as_scope(scope, method, path)
            is_node_only = needs == ("node",)
            is_let_in = needs == OPEN or scope in needs or (scope == "admin" and not is_node_only)
            refused = 403 if scope else 401
            # Joining and renewing refuse for themselves what the body does not prove.
            is_as_told = status not in REFUSED if is_let_in else status == refused
            if not is_as_told and not (is_let_in and path.startswith("/api/v1/trust/")):
                wrong.append(f"{method} {path} with {scope or 'no key'}: {status}")
    assert wrong == []


@pytest.mark.parametrize("scope", ["infer", NOBODY])
def test_no_spelling_of_a_path_or_method_opens_a_route(asker: Asker, scope: str) -> None:
    spellings = (
        ("GET", "/api/v1/keys/"),
        ("GET", "//api/v1/keys"),
        ("GET", "/api/v1//keys"),
        ("GET", "/api/v1/./keys"),
        ("GET", "/v2/../api/v1/keys"),
        ("GET", "/v2/health/live/../../../api/v1/keys"),
        ("GET", "/v2/health/live%2f..%2f..%2f..%2fapi/v1/keys"),
        ("GET", "/api/v1/%6beys"),
        ("GET", "/api/v1/keys%00"),
        ("GET", "/api/v1/keys;x"),
        ("GET", "/api/v1/keys%3fx"),
        ("GET", f"https://{asker.place}/api/v1/keys"),
        ("GET", "/api/v1/keys#/v2/health/live"),
        ("GET", "/API/V1/KEYS"),
        ("HEAD", "/api/v1/keys"),
        ("OPTIONS", "/api/v1/keys"),
        ("PATCH", "/api/v1/keys"),
        ("POST", "/api/v1/keys?method=GET"),
    )
    opened = [
        f"{method} {path}: {status}"
        for method, path in spellings
        if (status := asker.as_scope(scope, method, path)) < 400
    ]
    assert opened == []


def test_no_spelling_of_a_key_counts_but_its_own(asker: Asker, network: Network) -> None:
    key = asker.keys["admin"]
    wrong = (
        {"Authorization": f"Basic {key}"},
        {"Authorization": f"Bearer {key[:-1]}"},
        {"Authorization": f"Bearer {key} {key}"},
        {"Authorization": f"Bearer {key},{key}"},
        {"Authorization": f"Bearer {key.upper()}"},
        {"Authorization": f"Bearer\u00a0{key}"},
        {"Authorization": f"Bearer {key}\u00a0x"},
        {"Cookie": f"Authorization=Bearer {key}"},
        {"Proxy-Authorization": f"Bearer {key}"},
        {"X-API-Key": asker.keys["infer"], "Authorization": f"Bearer {key}"},
        {"Authorization\t": f"Bearer {key}"},
    )
    counted = [shown for shown in wrong if asker.status("GET", "/api/v1/keys", shown) < 400]
    assert counted == []
    for path in (f"/api/v1/keys?api_key={key}", f"/api/v1/keys/{key}", f"/{key}"):
        assert asker.status("GET", path, {}) == 401
    for shown in ({"AUTHORIZATION": f"bEARER   {key} "}, {"x-api-key": f" {key}"}):
        assert asker.status("GET", "/api/v1/keys", shown) == 200
    secret = key.partition(".")[2].encode()
    written = [*(network.folder / "gateway").rglob("*"), network.folder / "gateway.log"]
    assert not [each for each in written if each.is_file() and secret in each.read_bytes()]
