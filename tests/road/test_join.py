"""Machines join over TLS with real processes: tokens, attacks, lost answers, revocation."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from din.domain.enrolment import Membership
from din.domain.trust import PeerName
from din.enrol.joining import join
from din.errors import Denied
from din.system.clock import wall_clock_ms
from din.system.identity import write_atomically
from din.transport.membership import (
    EnrolAnswer,
    EnrolOrder,
    read_membership,
    write_membership,
)
from din.transport.tls import client_context, files_in, unverified_context
from din.trust.authority import open_authority
from din.trust.requests import new_key_pem, public_key_of_request, signing_request
from tests.road.processes import ENVIRONMENT, Network, get, post_json, send, wait_for

pytestmark = pytest.mark.system
HOUR_MS = 3_600_000
NO_ARTIFACT = f"/api/v1/artifacts/{'0' * 64}"


def facts(network: Network) -> Any:
    return json.loads((network.folder / "gateway" / "gateway.json").read_text())


def start(network: Network, **settings: Any) -> str:
    """A gateway with TLS; its https URL."""
    network.start_gateway(tls=True, tls_port=0, discovery_mode="unicast", **settings)
    return str(facts(network)["tls_urls"][0])


def new_token(network: Network, **order: Any) -> str:
    status, made = post_json(network.url, "/api/v1/trust/tokens", order)
    assert status == 201, made
    return str(made["token"])


def order_for(network: Network, token: str, url: str, key: str = "edge-1") -> EnrolOrder:
    """As `din node join` would order it, for the node that the test starts under this key."""
    state = network.folder / key
    state.mkdir(exist_ok=True)
    identity = state / "identity.json"
    if not identity.exists():
        node_id = f"{abs(hash(key)) % 2**64:016x}"
        identity.write_text(json.dumps({"node_id": node_id, "session": 1, "hardware": ""}))
    return EnrolOrder(
        folder=str(state / "trust"),
        gateways=(url,),
        token=token,
        node_id=json.loads(identity.read_text())["node_id"],
        name=key,
    )


def enrol(order: EnrolOrder, step: str = "join") -> EnrolAnswer:
    done = subprocess.run(
        [sys.executable, "-m", "din.enrol", step],
        input=msgspec.json.encode(order),
        capture_output=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    assert done.stderr == b""
    if order.token:
        assert order.token.rpartition(".")[2].encode() not in done.stdout
    return msgspec.json.decode(done.stdout, type=EnrolAnswer)


def joined(order: EnrolOrder) -> Membership:
    answer = enrol(order)
    assert answer.membership is not None, answer
    return answer.membership


@contextmanager
def rogue(context: ssl.SSLContext, authority_pem: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Poses as a gateway: answers every request with an authority, and keeps what it was sent."""
    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(authority_pem) + authority_pem

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as secure:
                    heard.append(secure.recv(65536))
                    secure.sendall(answer)
            except OSError:
                plain.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def own_context(folder: Path) -> tuple[ssl.SSLContext, bytes]:
    """What somebody with an authority of his own serves, and that authority."""
    now = datetime.now(UTC)
    authority = open_authority(folder, "plant", now)
    key = new_key_pem()
    files = files_in(folder, "gateway")
    write_atomically(files.key, key, mode=0o600)
    public = public_key_of_request(signing_request(key))
    name = PeerName("plant", "gateway", "ab" * 8)
    write_atomically(files.certificate, authority.issue(public, name, now))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(files.certificate), str(files.key))
    return context, authority.pem


def asked_over_tls(
    url: str, context: ssl.SSLContext, method: str, path: str, body: bytes = b""
) -> tuple[int, bytes]:
    host = url.removeprefix("https://")
    connection = http.client.HTTPSConnection(host, context=context, timeout=20)
    try:
        connection.request(method, path, body or None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_machine_joins_and_works_over_tls_only(network: Network) -> None:
    url = start(network)
    token = new_token(network, labels={"line": "4"})
    membership = joined(order_for(network, token, url))
    assert membership.cluster == network.cluster
    network.start_node("edge-1", gateway=(url,))
    network.wait_ready("edge-1")
    log = network.log_of("edge-1")
    assert url in log
    assert token.rpartition(".")[2] not in log + network.log_of("gateway")
    with network.client() as client:
        assert client.node("edge-1").profile.labels == {"line": "4"}  # pyright: ignore


def test_a_token_admits_one_machine(network: Network) -> None:
    url = start(network)
    token = new_token(network)
    joined(order_for(network, token, url))
    answer = enrol(order_for(network, token, url, "edge-2"))
    assert (answer.code, answer.membership) == ("DIN-700", None)
    assert "was used by node" in answer.message


def test_a_lost_answer_costs_nothing(network: Network) -> None:
    url = start(network)
    order = order_for(network, new_token(network), url)
    joined(order)
    (Path(order.folder) / "cluster.json").unlink()
    (Path(order.folder) / "node.pem").unlink()
    assert joined(order).node_id == order.node_id


def test_an_expired_token_a_wrong_secret_and_a_revoked_token_are_refused(network: Network) -> None:
    url = start(network)
    token = new_token(network, ttl_s=1)
    token_id = token.split(".")[2]
    wrong = token[:-4] + ("AAAA" if not token.endswith("AAAA") else "BBBB")
    assert "secret" in enrol(order_for(network, wrong, url)).message

    def is_expired() -> bool:
        _, raw = get(network.url, "/api/v1/trust/tokens")
        return any(each["state"] == "expired" for each in json.loads(raw)["items"])

    wait_for("the token expires", is_expired)
    assert "expired" in enrol(order_for(network, token, url)).message
    assert send(network.url, "DELETE", f"/api/v1/trust/tokens/{token_id}", b"")[0] == 200
    assert "not known" in enrol(order_for(network, token, url)).message


def test_of_two_machines_that_join_with_one_token_at_once_exactly_one_gets_in(
    network: Network,
) -> None:
    url = start(network)
    inside: set[str] = set()
    for turn in range(3):
        path = network.folder / f"token-{turn}"
        path.write_text(new_token(network))
        names = (f"left-{turn}", f"right-{turn}")

        def join_as(name: str, path: Path = path) -> subprocess.CompletedProcess[str]:
            where = ("--name", name, "--state-dir", str(network.folder / name))
            return network.din(
                "node", "join", "--token-file", str(path), "--gateway", url, *where
            )  # fmt: skip

        with ThreadPoolExecutor(2) as pool:
            done = dict(zip(names, pool.map(join_as, names), strict=True))
        assert sorted(each.returncode for each in done.values()) == [0, 8], done
        for name, each in done.items():
            has_come = each.returncode == 0
            assert (network.folder / name / "trust" / "cluster.json").exists() is has_come
            if has_come:
                inside.add(each.stdout.strip())
            else:
                assert "admits one machine" in each.stderr
    _, raw = get(network.url, "/api/v1/trust/tokens")
    assert {each["used_by"] for each in json.loads(raw)["items"]} == inside
    assert len(inside) == 3


def test_many_wrong_tokens_are_told_to_wait_and_a_right_one_is_still_taken(
    network: Network,
) -> None:
    url = start(network)
    token = new_token(network)
    order = order_for(network, token, url)
    body = {
        "token_id": token.split(".")[2],
        "secret": "A" * 22,
        "request": "",
        "node_id": order.node_id,
    }
    statuses = [
        asked_over_tls(
            url, unverified_context(), "POST", "/api/v1/trust/join", json.dumps(body).encode()
        )[0]
        for _ in range(12)
    ]
    assert statuses == [403] * 10 + [429] * 2
    wrong = token[:-22] + "A" * 22
    answer = enrol(msgspec.structs.replace(order, token=wrong))
    assert (answer.code, answer.membership) == ("DIN-321", None)
    assert "too many joins from 127.0.0.1" in answer.message
    assert "din token create" in answer.hint
    assert joined(order).node_id == order.node_id
    _, raw = get(network.url, "/api/v1/audit?what=access.refuse")
    assert len(json.loads(raw)["items"]) == 10


def test_a_rogue_gets_nothing_secret(network: Network, tmp_path: Path) -> None:
    start(network)
    token = new_token(network)
    secret = token.rpartition(".")[2].encode()
    context, pem = own_context(tmp_path / "rogue")
    with rogue(context, pem) as (url, heard):
        answer = enrol(order_for(network, token, url))
        assert answer.code == "DIN-700"
        assert "another authority" in answer.message
        assert len(heard) == 1
        assert secret not in b"".join(heard)


def test_who_passes_the_true_authority_on_gets_nothing_secret(
    network: Network, tmp_path: Path
) -> None:
    start(network)
    token = new_token(network)
    context, _ = own_context(tmp_path / "rogue")
    true_pem = (network.folder / "gateway" / "trust" / "ca.pem").read_bytes()
    with rogue(context, true_pem) as (url, heard):
        answer = enrol(order_for(network, token, url))
        assert answer.code == "DIN-700"
        assert "does not prove" in answer.message
        assert token.rpartition(".")[2].encode() not in b"".join(heard)


def test_a_node_that_poses_as_the_gateway_gets_nothing_secret(network: Network) -> None:
    """It has the true authority and a certificate of it: only the role tells."""
    url = start(network)
    thief = order_for(network, new_token(network), url, "edge-2")
    joined(thief)
    token = new_token(network)
    files = files_in(Path(thief.folder), "node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(files.certificate), str(files.key))
    with rogue(context, files.authority.read_bytes()) as (posing, heard):
        answer = enrol(order_for(network, token, posing))
        assert answer.code == "DIN-700"
        assert f"node/{thief.node_id} answered instead of gateway" in answer.message
        (asked,) = filter(None, heard)  # for the authority, and nothing was said after that
        assert b"/trust/ca " in asked
        assert token.rpartition(".")[2].encode() not in asked


def test_without_our_certificate_nobody_is_a_node(network: Network, tmp_path: Path) -> None:
    url = start(network)
    assert asked_over_tls(url, unverified_context(), "POST", "/api/v1/nodes", b"x")[0] == 401
    assert asked_over_tls(url, unverified_context(), "GET", "/api/v1/nodes")[0] == 401
    own_context(tmp_path / "foreign")
    context = unverified_context()
    files = files_in(tmp_path / "foreign", "gateway")
    context.load_cert_chain(str(files.certificate), str(files.key))
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        asked_over_tls(url, context, "GET", "/api/v1/gateway")


def test_clocks_that_are_an_hour_apart_are_named(network: Network) -> None:
    url = start(network)
    order = order_for(network, new_token(network), url)
    with pytest.raises(Denied, match=r"clock of this machine is 3[56]\d\d s behind") as told:
        join(order, lambda: wall_clock_ms() - HOUR_MS)
    assert "timedatectl" in told.value.hint
    with pytest.raises(Denied, match="s ahead of"):
        join(order, lambda: wall_clock_ms() + HOUR_MS)


def test_a_revoked_node_is_out_at_once_and_after_a_restart(network: Network) -> None:
    url = start(network)
    order = order_for(network, new_token(network), url)
    joined(order)
    network.start_node("edge-1", gateway=(url,))
    network.wait_ready("edge-1")
    own = client_context(files_in(Path(order.folder), "node"))
    assert asked_over_tls(url, own, "GET", NO_ARTIFACT)[0] == 404
    status, view = post_json(network.url, "/api/v1/nodes/edge-1/revoke", {})
    assert (status, view["is_new"]) == (200, True)
    # No slice either, though its certificate has hours left.
    status, told = asked_over_tls(url, own, "GET", NO_ARTIFACT)
    assert (status, b"revoked" in told) == (401, True)
    wait_for("it is lost", lambda: network.statuses().get("edge-1") in (None, "lost"))
    wait_for("it is told", lambda: "revoked" in network.log_of("edge-1"))
    assert "revoked" in enrol(order, "renew").message
    assert network.gateway is not None
    network.gateway.terminate()
    network.gateway.wait()
    again = start(network)
    fresh = msgspec.structs.replace(order, gateways=(again,), token=new_token(network))
    assert "revoked" in enrol(fresh).message
    assert "revoked" in enrol(fresh, "renew").message


def test_a_node_renews_and_outlives_a_restart_of_its_gateway(network: Network) -> None:
    url = start(network)
    order = order_for(network, new_token(network), url)
    joined(order)
    before = files_in(Path(order.folder), "node").certificate.read_text()
    answer = enrol(order, "renew")
    assert answer.membership is not None, answer
    assert files_in(Path(order.folder), "node").certificate.read_text() != before


def let_lapse(network: Network, order: EnrolOrder, days: int) -> None:
    """As if the machine had been off for so long: its certificate is of that time."""
    folder = Path(order.folder)
    trust = network.folder / "gateway" / "trust"
    then = datetime.now(UTC) - timedelta(days=days)
    key = public_key_of_request(signing_request((folder / "node.key").read_bytes()))
    name = PeerName(network.cluster, "node", order.node_id)
    issued = open_authority(trust, network.cluster, then).issue(key, name, then)
    (folder / "node.pem").write_bytes(issued)
    membership = read_membership(folder)
    begins_ms = membership.begins_ms - days * 24 * HOUR_MS
    write_membership(
        folder,
        msgspec.structs.replace(membership, begins_ms=begins_ms, ends_ms=begins_ms + 24 * HOUR_MS),
    )


def test_a_machine_that_was_off_for_days_comes_back_by_itself(network: Network) -> None:
    url = start(network)
    order = order_for(network, new_token(network), url)
    joined(order)
    let_lapse(network, order, days=20)
    network.start_node("edge-1", gateway=(url,))
    network.wait_ready("edge-1")
    wait_for("it renews", lambda: "certificate_renewed" in network.log_of("edge-1"))
    _, raw = get(network.url, "/api/v1/audit?what=node.renew")
    (entry,) = json.loads(raw)["items"]
    assert entry["entry"]["who"] == order.node_id
    assert entry["entry"]["after"]["late_s"] > 18 * 24 * 3600


def test_a_machine_that_was_off_for_too_long_or_was_revoked_stays_out(network: Network) -> None:
    url = start(network, late_renewal_days=10)
    order = order_for(network, new_token(network), url)
    joined(order)
    let_lapse(network, order, days=20)
    answer = enrol(order, "renew")
    assert answer.code == "DIN-700"
    assert "renewed for 10 days after its end" in answer.message
    assert "din node join -" in answer.hint
    fresh = msgspec.structs.replace(order, token=new_token(network))
    assert joined(fresh).node_id == order.node_id
    let_lapse(network, order, days=5)
    assert post_json(network.url, f"/api/v1/nodes/{order.node_id}/revoke", {})[0] == 200
    assert "revoked" in enrol(order, "renew").message


def test_a_copied_directory_or_a_plain_neighbour_cannot_take_an_id(network: Network) -> None:
    url = start(network)
    order = order_for(network, new_token(network), url)
    joined(order)
    other = order_for(network, new_token(network), url, "edge-2")
    thief = msgspec.structs.replace(other, node_id=order.node_id)
    assert "held by another key" in enrol(thief).message
    shutil.copy(network.folder / "edge-1" / "identity.json", network.folder / "edge-2")
    network.start_node("edge-2")
    wait_for("it is refused", lambda: "joined with a certificate" in network.log_of("edge-2"))
    assert network.statuses() == {}
