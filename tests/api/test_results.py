"""The binary form of answers and traces, for who asks for it by Accept."""

import json
import struct
from math import isinf, isnan

import msgspec
import pytest
from api_fakes import trace_of
from api_harness import asked_in_turn, with_server

from din.api.results import wants_result
from din.api.seeds import infer_reply
from din.domain.result import CONTENT_TYPE
from din.gateway.service import InferenceAnswer
from din.wire.result import decode_result

BINARY = {"accept": CONTENT_TYPE}
JPEG = b"\xff\xd8\xff\xe0 not really a photo"
NO_NUMBERS = struct.pack("<4f", float("nan"), float("inf"), float("-inf"), -0.0)


def view_in_json(data: bytes) -> bytes:
    """What the gateway would have answered in JSON, made of the binary form alone."""
    result, views = decode_result(data)
    answer = InferenceAnswer(
        request_id=result.request_id,
        model_id=result.model_id,
        version=result.version,
        metas=result.outputs,
        views=views,
        steps=result.execution_trace,
        release=lambda: None,
    )
    return bytes(infer_reply(answer, is_adapted=result.is_adapted).parts[0])


def asked_with_tensors(model: str, word: str, data: list[object]):
    tensor = {"name": "x", "datatype": word, "shape": [1, len(data)], "data": data}
    body = {"model_id": model, "inputs": [tensor], "request_id": "r"}
    return "/infer", json.dumps(body).encode(), {}


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/infer?model=faces&request_id=r", JPEG, {"content-type": "image/jpeg"}),
        asked_with_tensors("echo-INT64", "INT64", [1, -(2**62)]),
        asked_with_tensors("echo-BYTES", "BYTES", ["脸", ""]),
        asked_with_tensors("echo-BOOL", "BOOL", [True, False]),
        asked_with_tensors("plain", "FP32", [0.1, 2]),
    ],
    ids=range(5),
)
def test_both_forms_are_views_of_one_thing(tmp_path, path, body, headers):
    (plain, binary), world = asked_in_turn(
        tmp_path, ("POST", path, body, headers), ("POST", path, body, headers | BINARY)
    )
    assert plain.headers["content-type"] == "application/json"
    assert binary.headers["content-type"] == CONTENT_TYPE
    assert view_in_json(binary.body) == plain.body
    assert world.inference.released == 2


def test_what_is_no_number_is_null_in_json_and_stays_in_binary(tmp_path):
    asked = asked_with_tensors("plain", "FP32", [0, 0])
    head = {"inputs": msgspec.json.decode(asked[1])["inputs"]}
    answers = []

    async def test(world):
        world.inference.big = NO_NUMBERS
        client = await world.client()
        oip = [
            ("/v2/models/plain/infer", json.dumps(head | more).encode())
            for more in ({}, {"parameters": {"binary_data_output": True}})
        ]
        posts = (asked, (*asked[:2], BINARY), *oip)
        answers.extend([await client.ask("POST", *post) for post in posts])

    with_server(tmp_path, test)
    plain, binary, oip, oip_binary = answers
    for data in (plain.json()["result"]["out_x"]["data"], oip.json()["outputs"][0]["data"]):
        assert data == [None, None, None, -0.0]
    _, (view,) = decode_result(binary.body)
    assert bytes(view) == NO_NUMBERS
    assert oip_binary.body.endswith(NO_NUMBERS)
    values = struct.unpack("<4f", view)
    assert isnan(values[0])
    assert isinf(values[1])


def test_a_trace_is_the_same_in_both_forms(tmp_path):
    path = "/api/v1/traces/req-1"
    (plain, binary, none), _ = asked_in_turn(
        tmp_path,
        ("GET", path),
        ("GET", path, b"", BINARY),
        ("GET", "/api/v1/traces/none", b"", BINARY),
    )
    assert plain.headers["vary"] == binary.headers["vary"] == "accept"
    assert binary.headers["content-type"] == CONTENT_TYPE
    found = decode_result(binary.body)[0].trace
    assert found == trace_of("req-1", "faces")
    assert msgspec.json.encode(found) == plain.body
    assert none.status == 404
    assert none.headers["content-type"] == "application/json", "errors are always JSON"


def test_errors_of_requests_stay_json(tmp_path):
    (answer,), _ = asked_in_turn(tmp_path, ("POST", "/infer?model=none", JPEG, BINARY))
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"]


@pytest.mark.parametrize(
    ("accept", "is_wanted"),
    [
        (b"", False),
        (b"*/*", False),
        (b"application/json", False),
        (b"application/vnd.din.result+flatbuffers", True),
        (b"Application/vnd.DIN.result+flatbuffers;q=0.5", True),
        (b"application/json, application/vnd.din.result+flatbuffers", True),
        (b"application/json;q=0.9, application/vnd.din.result+flatbuffers;q=0.1", False),
        (b"application/vnd.din.result+flatbuffers;q=0", False),
        (b"application/vnd.din.result+flatbuffers;q=nan", False),
        (b"application/vnd.din.result+flatbuffers;q=x", True),
        (b"application/vnd.din.result+flatbuffers2", False),
        (b"application/vnd.din.result+flatbuffers;;;q=;,,,", True),
    ],
)
def test_accept_is_read_with_its_weights(accept, is_wanted):
    assert wants_result(accept) is is_wanted
