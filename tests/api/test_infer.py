"""POST /infer: the seeds' route."""

import base64

import msgspec
import pytest
from api_harness import World, with_server

JPEG = b"\xff\xd8\xff\xe0 not really a photo"
TEXT = base64.b64encode(JPEG).decode()


def ask(tmp_path, body, path="/infer", headers=None):
    """One post; the answer and the world it was asked in."""
    kept = {}
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)

    async def test(world: World):
        client = await world.client()
        kept["answer"] = await client.ask("POST", path, raw, headers)
        kept["world"] = world

    with_server(tmp_path, test)
    return kept["answer"], kept["world"]


def test_a_photo_becomes_boxes_scores_and_labels(tmp_path):
    answer, world = ask(
        tmp_path,
        {
            "model_id": "faces",
            "input_data": TEXT,
            "timeout_ms": 5000,
            "request_id": "r1",
            "precision": "exact",
        },
    )
    told = answer.json()
    assert told["request_id"] == answer.headers["din-request-id"] == "r1"
    assert told["status"] == "completed"
    assert told["result"] == {
        "boxes": [[0.1, 0.2, 30.5, 40.25]],
        "scores": [0.9],
        "labels": ["face"],
    }
    step = told["execution_trace"][0]
    assert (step["node"], step["phase"], step["gpu_util"]) == ("edge-1", "whole", None)
    call = world.inference.calls[0]
    assert call.is_adapted
    assert call.timeout_ms == 5000
    assert call.precision == "exact"
    assert b"".join(call.chunks[0]) == JPEG


def test_the_raw_file_may_be_the_body(tmp_path):
    answer, world = ask(
        tmp_path,
        JPEG,
        "/infer?model=faces&timeout_ms=70&precision=fp16",
        {"content-type": "image/jpeg"},
    )
    assert answer.status == 200
    assert b"".join(world.inference.calls[0].chunks[0]) == JPEG
    assert world.inference.calls[0].timeout_ms == 70
    assert world.inference.calls[0].precision == "fp16"


def test_a_dry_run_does_not_look_at_the_input(tmp_path):
    answer, world = ask(
        tmp_path, {"model_id": "faces", "input_data": "fake"}, "/infer?dry-run=true"
    )
    told = answer.json()
    assert told["status"] == "planned"
    step = told["execution_plan"][0]
    assert (step["node"], step["reason"], step["slice"]) == ("edge-1", "lowest_load", "whole")
    assert (step["memory_reserved_mb"], step["gpu_memory_reserved_mb"]) == (120, None)
    assert step["rejected"][0]["node"] == "edge-2"
    assert told["plan"]["plan_id"] == "p1"
    assert not world.inference.calls


def test_a_model_without_adapter_takes_and_gives_tensors(tmp_path):
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4]]}
    answer, _ = ask(tmp_path, {"model_id": "plain", "inputs": [tensor]})
    assert answer.json()["result"] == {
        "out_x": {"datatype": "FP32", "shape": [2, 2], "data": [1.0, 2.0, 3.0, 4.0]}
    }


def test_line_breaks_in_base64_are_no_fault(tmp_path):
    answer, _ = ask(tmp_path, {"model_id": "faces", "input_data": TEXT[:8] + "\n" + TEXT[8:]})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "body is empty"),
        (b"{", 400, "not valid JSON"),
        (b'{"model_id": "faces", "timeout_ms": NaN}', 400, "NaN"),
        (b'{"model_id": 5}', 400, "$.model_id"),
        (b'{"model": "faces"}', 400, "did you mean 'model_id'"),
        (b"[]", 400, "got `array`"),
        (b'{"input_data": ' + b"[" * 100_000, 400, "JSON"),
        (b'{"model_id": "\xff"}', 400, "JSON"),
        ({"input_data": TEXT}, 400, "names no model"),
        ({"model_id": "face", "input_data": TEXT}, 404, "similar: faces"),
        ({"model_id": "faces"}, 400, "no input_data"),
        ({"model_id": "faces", "input_data": 7}, 400, "int"),
        ({"model_id": "faces", "input_data": ""}, 400, "empty"),
        ({"model_id": "faces", "input_data": "abc!efgh"}, 400, "'!' at character 3"),
        ({"model_id": "faces", "input_data": "ab-_"}, 400, "URL-safe"),
        ({"model_id": "faces", "input_data": "abcde"}, 400, "multiple of 4"),
        ({"model_id": "faces", "input_data": "ab==cdef"}, 400, "character 2"),
        ({"model_id": "faces", "input_data": "ab= =c"}, 400, "character 2"),
        ({"model_id": "faces", "input_data": "data:image/png;base64,AA"}, 400, "comma"),
        ({"model_id": "faces", "input_data": TEXT, "timeout_ms": 0}, 400, "1 to 3600000"),
        ({"model_id": "faces", "input_data": TEXT, "precision": "int4"}, 400, "exact, fp16, uint8"),
        ({"model_id": "faces", "input_data": TEXT, "outputs": ["box"]}, 400, "'boxes'"),
        ({"model_id": "plain", "input_data": TEXT}, 400, "takes tensors"),
        ({"model_id": "a\u0000b", "input_data": TEXT}, 400, "control character"),
    ],
)
def test_bad_requests_say_what_is_wrong_and_count(tmp_path, body, status, said):
    """T44, T45, T47."""
    answer, world = ask(tmp_path, body)
    told = answer.json()
    assert answer.status == status
    assert told["status"] == "failed"
    assert told["request_id"] == answer.headers["din-request-id"]
    assert said in told["error"]["message"] + told["error"]["hint"]
    assert [code for _, code in world.inference.rejected] == [told["error"]["code"]]


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model_id": "faces", "input_data": "=" * MILLION}, 400, "not base64"),
        ({"model_id": "\u0301\u0323" * MILLION, "input_data": TEXT}, 400, "the limit is 128"),
        ({"model_id": "faces", "outputs": ["b" * MILLION]}, 400, "4096"),
        ({"model_id": "faces", "outputs": ["boxes"] * 2000, "input_data": TEXT}, 400, "1024"),
        (b'{"model_id": "faces", "%s": 1}' % (b"b" * MILLION), 400, "unknown field"),
        (b'{"input_data": [%s1]}' % (b"[]," * MILLION), 413, "1000002 brackets"),
        (b'{"inputs": [%s1]}' % (b"1," * 5 * MILLION), 413, "5000000 commas"),
    ],
    ids=["padding", "marks", "output", "outputs", "field", "lists", "values"],
)
def test_what_costs_more_than_it_may_is_refused_in_few_words(tmp_path, body, status, said):
    """Each of these took seconds to hours, or most of the memory, on the event loop of all."""
    answer, _ = ask(tmp_path, body)
    assert answer.status == status
    assert said in answer.json()["error"]["message"]
    assert len(answer.body) < 2000


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/infer?model=faces&dry-run=maybe", "true or false"),
        ("/infer?modle=faces", "query fields are"),
        ("/infer?model=faces&model=faces", "given twice"),
        ("/infer?model=%ff", "query string"),
    ],
)
def test_bad_queries_are_named(tmp_path, path, said):
    answer, _ = ask(tmp_path, JPEG, path, {"content-type": "image/png"})
    assert answer.status == 400
    told = answer.json()["error"]
    assert said in told["message"] + told["hint"]


def test_of_a_key_given_twice_the_last_one_counts(tmp_path):
    body = f'{{"model_id": "none", "model_id": "faces", "input_data": "{TEXT}"}}'.encode()
    assert ask(tmp_path, body)[0].status == 200


@pytest.mark.parametrize("request_id", ["an id", "编号-1"])
def test_the_callers_request_id_comes_back(tmp_path, request_id):
    answer, _ = ask(tmp_path, {"model_id": "faces", "input_data": TEXT, "request_id": request_id})
    assert answer.json()["request_id"] == request_id
    assert answer.headers["din-request-id"].isascii()


def test_a_request_id_cannot_split_the_head(tmp_path):
    body = {"model_id": "faces", "input_data": TEXT, "request_id": "a\r\nset-cookie: x"}
    answer, _ = ask(tmp_path, body)
    assert answer.status == 400
    assert "set-cookie" not in answer.headers
