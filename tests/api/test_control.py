"""The control API, metadata, artifacts and events."""

import hashlib
import json
import socket
from urllib.parse import quote

import msgspec
import pytest
from api_harness import World, asked_in_turn, request, until, with_server

from din.api.limits import FrontLimits
from din.api.serve import bind
from din.domain.views import RegisterModel
from din.errors import Conflict, Denied

TLV = {"content-type": "application/x-din-tlv"}


FLAT = b'{"model_id": "m", "source_sha256": "00", "partition_points": ["404"]}'
"""The strategy's key outside of the strategy: ignoring it would cut nothing without a word."""


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("/api/v1/gateway", "din.gateway/1"),
        ("/api/v1/nodes", "din.nodes/1"),
        ("/api/v1/nodes/edge-1/heat", "din.heat/1"),
        ("/api/v1/models", "din.models/1"),
        ("/api/v1/models/faces", "din.model/1"),
        ("/api/v1/plan?model=faces", "din.plan/1"),
        ("/api/v1/traces?limit=2", "din.traces/1"),
    ],
)
def test_answers_carry_their_schema_and_an_id(tmp_path, path, schema):
    (answer,), _ = asked_in_turn(tmp_path, ("GET", path))
    assert answer.json()["schema"] == schema
    assert answer.headers["din-request-id"].startswith("req-")


def test_nodes_register_beat_drain_and_leave(tmp_path):
    (registered, beat, bad, one, drained, forced, back, lifted, left), world = asked_in_turn(
        tmp_path,
        ("POST", "/api/v1/nodes", b"\x01tlv", TLV),
        ("POST", "/api/v1/heartbeat", b"beat"),
        ("POST", "/api/v1/heartbeat", b"bad"),
        ("GET", "/api/v1/nodes/edge-1"),
        ("POST", "/api/v1/nodes/edge-1/drain"),
        ("POST", "/api/v1/nodes/edge-1/drain?force=true&dry_run=true"),
        ("POST", "/api/v1/nodes/edge-1/undrain"),
        ("POST", "/api/v1/nodes/edge-1/lift"),
        ("DELETE", "/api/v1/nodes/edge-1?session=7"),
    )
    assert registered.body == b"hello 127.0.0.1 \x01tlv"
    assert registered.headers["content-type"] == TLV["content-type"]
    assert (beat.body, world.control.beats) == (b"ok", [b"beat"])
    assert (bad.status, bad.json()["error"]["code"]) == (400, "DIN-100")
    assert one.json()["name"] == drained.json()["name"] == "edge-1"
    assert back.status == forced.status == 200
    assert world.control.drained == [("edge-1", True, True)]
    assert (lifted.status, world.control.lifted) == (200, ["edge-1"])
    assert left.status == 204
    assert world.control.deregistered == [("edge-1", 7)]


def test_heat_is_asked_for_a_window_and_a_mask(tmp_path):
    answers, _ = asked_in_turn(
        tmp_path,
        ("GET", "/api/v1/nodes/edge-1/heat"),
        ("GET", "/api/v1/nodes/edge-1/heat?window_ms=250&core_mask=0xF"),
        ("GET", "/api/v1/nodes/edge-1/heat?window_ms=9"),
        ("GET", "/api/v1/nodes/edge-1/heat?core_mask=7G"),
        ("GET", "/api/v1/nodes/edge-1/heat?cores=1"),
    )
    plain, asked, *bad = (each.json() for each in answers)
    assert (plain["window_ms"], plain["core_mask"]) == (100, "0x0")
    assert (asked["window_ms"], asked["core_mask"]) == (250, "0xf")
    assert [each["error"]["message"].split()[0] for each in bad] == [
        "window_ms", "core_mask", "unknown",
    ]  # fmt: skip


def test_a_dry_run_of_revoking_throws_nobody_out(tmp_path):
    (dry, wet), world = asked_in_turn(
        tmp_path,
        ("POST", "/api/v1/nodes/edge-1/revoke?dry_run=true"),
        ("POST", "/api/v1/nodes/edge-1/revoke"),
    )
    assert dry.json() == wet.json()
    assert world.control.revoked == [dry.json()["node_id"]]


@pytest.mark.parametrize(
    ("date", "sent_ms"),
    [
        ("Thu, 01 Jan 2026 00:00:07 GMT", 1_767_225_607_000),
        ("yesterday", None),
        ("Thu, 99 Jan 99999999999 00:00:07 GMT", None),
        ("", None),
    ],
)
def test_a_registration_may_say_what_time_the_node_has(tmp_path, date, sent_ms):
    """T12."""
    asked = ("POST", "/api/v1/nodes", b"\x01tlv", {**TLV, "date": date})
    (answer,), world = asked_in_turn(tmp_path, asked)
    assert answer.status == 200
    assert world.control.sent_wall_ms == sent_ms


def test_models_are_registered_read_and_removed_under_any_name(tmp_path):
    """T42."""
    name = "模型/100%😀"
    order = msgspec.json.encode({"model_id": name, "source_sha256": "0" * 64})
    path = f"/api/v1/models/{quote(name, safe='')}"
    (made, read, gone), world = asked_in_turn(
        tmp_path, ("POST", "/api/v1/models", order), ("GET", path), ("DELETE", path)
    )
    assert (made.status, made.json()["model_id"]) == (202, name)
    assert read.json()["model_id"] == name
    assert gone.status == 200
    assert world.control.removed == [name]


@pytest.mark.parametrize(
    "strategy", ["null", "{}", '{"type": null, "partition_points": null, "slices": null}']
)
def test_null_for_what_may_be_left_out_leaves_it_out(tmp_path, strategy):
    order = (
        f'{{"model_id": "m", "source_sha256": "{"0" * 64}", "slicing_strategy": {strategy}, '
        '"inputs": null, "workers": null, "before": null, "external": null}'
    )
    (answer,), world = asked_in_turn(tmp_path, ("POST", "/api/v1/models", order.encode()))
    assert answer.status == 202, answer.body
    assert world.control.orders == [RegisterModel(model_id="m", source_sha256="0" * 64)]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model_id": null, "source_sha256": "0"}',
        b'{"model_id": "m", "source_sha256": "0", "inputs": {"x": null}}',
        b'{"model_id": "m", "source_sha256": "0", "inputs": null, "external": {"w": null}}',
        b'{"model_id": "m", "source_sha256": "0", "slicing_strategy": {"slices": [null]}}',
        b"null",
    ],
)
def test_null_for_what_must_be_given_is_refused(tmp_path, body):
    (answer,), _ = asked_in_turn(tmp_path, ("POST", "/api/v1/models", body))
    assert answer.status == 400
    assert "got `null`" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        (("GET", "/api/v1/nods"), 404, "/api/v1/nodes"),
        (("GET", "/xyzzy"), 404, "GET / lists"),
        (("PUT", "/api/v1/nodes"), 405, "GET, HEAD, POST"),
        (("GET", "/infer?model=faces"), 405, "POST"),
        (("GET", "/api/v1/nodes/edge-9"), 404, "edge-1"),
        (("GET", "/api/v1/models/none"), 404, "none"),
        (("GET", "/api/v1/traces/none"), 404, "none"),
        (("GET", "/api/v1/traces?limit=0"), 400, "1..1000"),
        (("GET", "/api/v1/traces?limt=5"), 400, "limit"),
        (("GET", "/api/v1/plan"), 400, "?model=ID"),
        (("POST", "/api/v1/plan", b'{"slices": []}'), 400, "length >= 1"),
        (("GET", "/api/v1/models/%ff"), 400, "UTF-8"),
        (("POST", "/api/v1/models", b"{"), 400, "not valid JSON"),
        (("POST", "/api/v1/models", b"{}"), 400, "model_id"),
        (("POST", "/api/v1/models", FLAT), 400, "unknown field `partition_points`"),
        (("POST", "/api/v1/models", b"x" * 2000), 413, "limit is 1000"),
        (("POST", "/api/v1/nodes", b"x"), 400, "application/x-din-tlv"),
        (("POST", "/api/v1/nodes", b"clone", TLV), 409, "taken"),
        (("DELETE", "/api/v1/nodes/edge-1"), 400, "session"),
        (("POST", "/api/v1/nodes/edge-1/drain?force=1"), 400, "true or false"),
        (("POST", "/api/v1/nodes/edge-1/drain?forced=true"), 400, "force, dry_run"),
        (("POST", "/api/v1/nodes/edge-1/undrain?force=true"), 400, "takes none"),
        (("POST", "/api/v1/nodes/edge-1/revoke?dry_run=1"), 400, "true or false"),
        (("POST", "/api/v1/nodes/edge-1/revoke?dry=true"), 400, "dry_run"),
        (("POST", "/api/v1/heartbeat", b"x" * 5000), 413, "4096"),
        (("GET", "/api/v1/artifacts/abc"), 400, "64 lowercase"),
        (("GET", "/api/v1/artifacts/" + "0" * 64), 404, "PUT"),
    ],
)
def test_bad_requests_get_a_clear_error(tmp_path, asked, status, said):
    limits = FrontLimits(control_body_bytes_max=1000, linger_s=0.05)
    (answer,), _ = asked_in_turn(tmp_path, asked, limits=limits)
    assert answer.status == status
    error = answer.json()["error"]
    assert said in error["message"] + error["hint"]


def test_metadata_and_health_of_the_inference_protocol(tmp_path):
    (server, live, ready, model, one, missing), _ = asked_in_turn(
        tmp_path,
        ("GET", "/v2"),
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/plain"),
        ("GET", "/v2/models/plain/versions/1/ready"),
        ("GET", "/v2/models/none"),
    )
    assert "binary_tensor_data" in server.json()["extensions"]
    assert live.json() == {"live": True}
    assert ready.json() == {"ready": True, "live": True}
    assert model.json()["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert one.json() == {"name": "plain", "ready": True}
    assert missing.status == 404
    assert isinstance(missing.json()["error"], str)


def test_a_gateway_that_is_not_ready_answers_503(tmp_path):
    async def test(world: World):
        world.inference.is_ready_now = False
        answer = await (await world.client()).ask("GET", "/v2/health/ready")
        assert (answer.status, answer.json()["ready"]) == (503, False)

    with_server(tmp_path, test)


def test_artifacts_are_stored_by_hash_and_read_in_parts(tmp_path):
    data = bytes(range(256)) * 4000
    path = "/api/v1/artifacts/" + hashlib.sha256(data).hexdigest()
    (put, head, whole, part, tail, beyond, same, changed), _ = asked_in_turn(
        tmp_path,
        ("PUT", path, data),
        ("HEAD", path),
        ("GET", path),
        ("GET", path, b"", {"range": "bytes=1000-"}),
        ("GET", path, b"", {"range": "bytes=-5"}),
        ("GET", path, b"", {"range": f"bytes={len(data)}-"}),
        ("GET", path, b"", {"if-none-match": f'"{path[-64:]}"'}),
        ("GET", path, b"", {"range": "bytes=5-", "if-range": '"other"'}),
    )
    assert (put.status, put.json()["nbytes"]) == (201, len(data))
    assert (head.headers["content-length"], head.headers["accept-ranges"]) == ("1024000", "bytes")
    assert whole.body == changed.body == data
    assert (part.status, part.body) == (206, data[1000:])
    assert part.headers["content-range"] == "bytes 1000-1023999/1024000"
    assert tail.body == data[-5:]
    assert beyond.status == 416
    assert same.status == 304


def test_an_upload_goes_on_where_it_broke_off(tmp_path):
    data = bytes(range(200)) * 10
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"/api/v1/artifacts/{sha256}"

    async def test(world: World):
        client = await world.client()
        none = await client.ask("GET", f"{path}/upload")
        assert none.json() == {"sha256": sha256, "nbytes_received": 0}
        (world.control.folder / f"{sha256}.partial").write_bytes(data[:700])
        assert (await client.ask("GET", f"{path}/upload")).json()["nbytes_received"] == 700
        rest = {"content-range": "bytes 700-1999/2000"}
        put = await client.ask("PUT", path, data[700:], rest)
        assert (put.status, put.json()["nbytes"]) == (201, 2000)
        assert (await client.ask("GET", path)).body == data
        for wrong in ("bytes 700-1998/2000", "bytes 0-1999/2000", "bytes */2000", "700-1999/2000",
                      "bytes 700-1999/*"):  # fmt: skip
            refused = await client.ask("PUT", path, data[700:], {"content-range": wrong})
            assert refused.status == 400
            assert "Content-Range" in refused.json()["error"]["message"]

    with_server(tmp_path, test)


@pytest.mark.parametrize(
    "name",
    [
        "..%2fsecret", "%2e%2e%2fsecret", "%2e%2e", "..", "0" * 64 + "%2f..%2fsecret", "secret",
        "0" * 63 + "%00", "0" * 64 + ".sealed", "A" * 64, "%c0%ae%c0%ae%2fsecret",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_no_trick_in_the_name_of_an_artifact_leads_anywhere(tmp_path, method, name):
    (tmp_path / "secret").write_bytes(b"not for you")
    body = b"mine now" if method == "PUT" else b""
    (answer,), _ = asked_in_turn(tmp_path, (method, f"/api/v1/artifacts/{name}", body))
    assert answer.status == 400
    assert "64 lowercase" in answer.json()["error"]["hint"]
    assert (tmp_path / "secret").read_bytes() == b"not for you"


def test_an_upload_says_whether_it_is_sealed_as_it_comes(tmp_path):
    path = "/api/v1/artifacts/" + hashlib.sha256(b"abc").hexdigest()
    asked = [path, f"{path}?encrypt=true", f"{path}?encrypt=false"]
    wrong = [f"{path}?encrypt=yes", f"{path}?seal=true"]
    answers, world = asked_in_turn(tmp_path, *(("PUT", each, b"abc") for each in (*asked, *wrong)))
    assert [each.status for each in answers] == [201, 201, 201, 400, 400]
    assert world.control.encrypted == [None, True, False]


def test_bytes_with_another_hash_are_refused(tmp_path):
    (answer,), world = asked_in_turn(tmp_path, ("PUT", "/api/v1/artifacts/" + "0" * 64, b"abc"))
    assert answer.status == 400
    assert world.control.has_artifact("0" * 64) is None


def test_events_flow_until_the_client_goes(tmp_path):
    async def test(world: World):
        client = await world.client()
        client.send(request("GET", "/api/v1/events"))
        text = await client.reader.readuntil(b'data: {"count": 2}')
        assert b"text/event-stream" in text
        assert b"event: beat" in text
        await client.close()
        await until(lambda: world.control.watching == 0)

    with_server(tmp_path, test)


def test_the_index_and_the_metrics_are_plain_text(tmp_path):
    (index, metrics), _ = asked_in_turn(tmp_path, ("GET", "/"), ("GET", "/metrics"))
    assert b"/api/v1/nodes" in index.body
    assert b"/infer" in index.body
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port}"):
            bind("127.0.0.1", port)


def test_only_loopback_without_the_word():
    with pytest.raises(Denied, match="loopback"):
        bind("0.0.0.0", 0)
    bind("0.0.0.0", 0, is_off_loopback_allowed=True).close()


def test_connections_do_not_wait_for_acknowledgements(tmp_path):
    async def test(world: World):
        await (await world.client()).ask("GET", "/v2")
        (connection,) = world.server._state.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    with_server(tmp_path, test)


def test_slices_that_are_not_registered_are_planned(tmp_path):
    part = {"index": 0, "slice_id": "s", "name": "front", "inputs": [], "outputs": []}
    body = json.dumps({"slices": [part]}).encode()
    (answer,), _ = asked_in_turn(tmp_path, ("POST", "/api/v1/plan", body))
    assert answer.status == 200
    (placed,) = answer.json()["plan"]["placements"]
    assert (placed["slice_name"], placed["node"]) == ("front", "edge-1")
