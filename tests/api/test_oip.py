"""POST /v2/models/{m}/infer: the Open Inference Protocol."""

import struct
from urllib.parse import quote

import msgspec
import pytest
from api_fakes import DTYPES
from api_harness import World, with_server

from din.domain.tensor import BYTES_ELEMENTS_MAX, DTYPE_BYTES

PLAIN = "/v2/models/plain/infer"


def ask(tmp_path, body, path=PLAIN, raw=None):
    """One post, with binary tensors when `raw` is given."""
    kept = {}
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {} if raw is None else {"inference-header-content-length": str(len(encoded))}

    async def test(world: World):
        client = await world.client()
        kept["answer"] = await client.ask("POST", path, encoded + (raw or b""), headers)
        kept["world"] = world

    with_server(tmp_path, test)
    return kept["answer"], kept["world"]


def tensor(dtype="FP32", shape=(1, 2), **more):
    return {"name": "x", "datatype": dtype, "shape": list(shape), **more}


def split(answer):
    size = int(answer.headers["inference-header-content-length"])
    return msgspec.json.decode(answer.body[:size]), answer.body[size:]


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_bytes_of_every_datatype_come_back_unchanged(tmp_path, dtype):
    """T36, T39."""
    if dtype == "BYTES":
        raw = b"".join(struct.pack("<I", len(each)) + each for each in (b"", b"\x00\xff", b"abc"))
    else:
        raw = bytes(range(3 * DTYPE_BYTES[dtype]))
    body = {
        "id": "42",
        "inputs": [tensor(dtype, (3,), parameters={"binary_data_size": len(raw)})],
        "parameters": {"binary_data_output": True},
    }
    answer, _ = ask(tmp_path, body, f"/v2/models/echo-{dtype}/infer", raw)
    told, back = split(answer)
    assert answer.status == 200
    assert back == raw
    assert told["id"] == answer.headers["din-request-id"] == "42"
    assert told["outputs"] == [
        {
            "name": "out_x",
            "datatype": dtype,
            "shape": [3],
            "parameters": {"binary_data_size": len(raw)},
        }
    ]
    assert msgspec.json.decode(told["parameters"]["execution_trace"])[0]["node"] == "edge-1"


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("BOOL", [True, False]),
        ("UINT8", [0, 255]),
        ("UINT16", [0, 65535]),
        ("UINT32", [0, 2**32 - 1]),
        ("UINT64", [0, 2**64 - 1]),
        ("INT8", [-128, 127]),
        ("INT16", [-32768, 32767]),
        ("INT32", [-(2**31), 2**31 - 1]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("FP32", [0.1, -3.5e38 / 2]),
        ("FP64", [0.1, -1e308]),
        ("BYTES", ["", "模型 😀"]),
    ],
)
def test_json_values_of_every_datatype_come_back_equal(tmp_path, dtype, values):
    body = {"inputs": [tensor(dtype, (2,), data=values)]}
    answer, _ = ask(tmp_path, body, f"/v2/models/echo-{dtype}/infer")
    assert answer.status == 200
    told = answer.json()
    assert "id" not in told
    back = told["outputs"][0]["data"]
    if dtype == "FP32":
        assert struct.pack("<2f", *back) == struct.pack("<2f", *values)
    else:
        assert back == values


def test_data_may_be_nested_or_flat(tmp_path):
    for data in ([[1, 2], [3, 4]], [1, 2, 3, 4]):
        answer, _ = ask(tmp_path, {"inputs": [tensor(shape=(2, 2), data=data)]})
        assert answer.json()["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]


def test_null_parameters_are_as_none(tmp_path):
    """Some clients write every key."""
    body = {
        "inputs": [tensor(shape=(1, 2), data=[1, 2], parameters=None)],
        "outputs": [{"name": "out_x", "parameters": None}],
        "parameters": None,
        "id": None,
    }
    answer, _ = ask(tmp_path, body)
    assert answer.status == 200, answer.body
    assert answer.json()["outputs"][0]["data"] == [1.0, 2.0]


@pytest.mark.parametrize("is_raw", [True, False])
def test_zero_size_dims_pass_through(tmp_path, is_raw):
    """T38."""
    if is_raw:
        body = {
            "inputs": [tensor(shape=(0, 2), parameters={"binary_data_size": 0})],
            "parameters": {"binary_data_output": True},
        }
        answer, _ = ask(tmp_path, body, raw=b"")
        told, back = split(answer)
        assert back == b""
    else:
        told = ask(tmp_path, {"inputs": [tensor(shape=(0, 2), data=[])]})[0].json()
        assert told["outputs"][0]["data"] == []
    assert told["outputs"][0]["shape"] == [0, 2]


def test_binary_and_json_outputs_are_chosen_by_output(tmp_path):
    body = {
        "inputs": [tensor(data=[1, 2])],
        "outputs": [{"name": "out_x", "parameters": {"binary_data": False}}],
        "parameters": {"binary_data_output": True, "timeout_ms": 9, "precision": "uint8"},
    }
    answer, world = ask(tmp_path, body)
    assert answer.json()["outputs"][0]["data"] == [1.0, 2.0]
    assert world.inference.calls[0].outputs == ("out_x",)
    assert world.inference.calls[0].timeout_ms == 9
    assert world.inference.calls[0].precision == "uint8"
    assert not world.inference.calls[0].is_adapted


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        ({}, "inputs"),
        ({"inputs": []}, "inputs missing: 'x'"),
        ({"inputs": [tensor()]}, "neither"),
        ({"inputs": [tensor(data=5)]}, "must be a list"),
        ({"inputs": [tensor(data=[1])]}, "needs 2 elements, got 1"),
        ({"inputs": [tensor(data=[[1, 2], [3]], shape=(2, 2))]}, "not nested"),
        ({"inputs": [tensor(data=[1, "a"])]}, "element 1 is 'a'"),
        ({"inputs": [tensor(data=[1, None])]}, "element 1 is None"),
        ({"inputs": [tensor(data=[1, 1e39])]}, "out of its range"),
        ({"inputs": [tensor("INT8", data=[1, 128])]}, "out of its range"),
        ({"inputs": [tensor("INT8", data=[1, 1.5])]}, "element 1 is 1.5"),
        ({"inputs": [tensor("FP16", data=[1, 2])]}, "no JSON form"),
        ({"inputs": [tensor("FLOAT", data=[1, 2])]}, "datatypes are"),
        ({"inputs": [tensor("FP64", data=[1, 2])]}, "FP64 but the model takes FP32"),
        ({"inputs": [tensor(shape=(2,), data=[1, 2])]}, "shape [2]"),
        ({"inputs": [tensor(shape=(-1, 2), data=[1, 2])]}, "sizes are"),
        ({"inputs": [tensor(shape=(1,) * 40, data=[1])]}, "40 dimensions"),
        ({"inputs": [{**tensor(data=[1, 2]), "name": "y"}]}, "unknown input 'y'"),
        ({"inputs": [tensor(data=[1, 2])] * 2}, "given twice"),
        ({"inputs": [tensor(data=[1, 2])], "outputs": [{"name": "y"}]}, "'out_x'"),
        ({"inputs": [tensor(data=[1, 2])], "parameters": {"timeout_ms": "5"}}, "timeout_ms"),
        ({"inputs": [tensor(data=[1, 2])], "parameters": {"precision": 16}}, "precision is 16"),
        ({"inputs": [tensor(parameters={"binary_data_size": 8})]}, "0 bytes follow"),
    ],
)
def test_bad_requests_say_what_is_wrong_and_count(tmp_path, body, said):
    """T44, T45, T46, T47."""
    answer, world = ask(tmp_path, body)
    told = answer.json()
    assert answer.status == 400
    assert isinstance(told["error"], str)
    assert said in told["error"]
    assert world.inference.rejected == [("plain", told["din"]["code"])]
    assert not world.inference.calls


@pytest.mark.parametrize(
    ("size", "raw", "said"),
    [
        (16, bytes(16), "needs 8 bytes, got 16"),
        (8, bytes(7), "7 bytes follow"),
        (8, bytes(9), "1 bytes follow the last"),
        (-1, b"", "binary_data_size is -1"),
    ],
)
def test_byte_counts_must_fit(tmp_path, size, raw, said):
    """T46."""
    body = {"inputs": [tensor(parameters={"binary_data_size": size})]}
    answer, _ = ask(tmp_path, body, raw=raw)
    assert answer.status == 400
    assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (struct.pack("<I", 1) + b"a", "needs 2 elements, got 1"),
        (struct.pack("<I", 900) + b"a", "claims 900 bytes"),
        (b"\x01", "only 0 follow"),
        (bytes(4 * (BYTES_ELEMENTS_MAX + 1)), f"over {BYTES_ELEMENTS_MAX} elements"),
    ],
    ids=range(4),
)
def test_short_bytes_tensors_are_refused(tmp_path, raw, said):
    """T39."""
    body = {"inputs": [tensor("BYTES", (2,), parameters={"binary_data_size": len(raw)})]}
    answer, _ = ask(tmp_path, body, "/v2/models/echo-BYTES/infer", raw)
    assert answer.status == 400
    assert said in answer.json()["error"]


def test_outputs_without_a_json_form_must_be_asked_for_raw(tmp_path):
    body = {"inputs": [tensor("BF16", (1,), parameters={"binary_data_size": 2})]}
    answer, world = ask(tmp_path, body, "/v2/models/echo-BF16/infer", b"\x00\x01")
    assert answer.status == 400
    assert "binary_data: true" in answer.json()["error"]
    assert not world.inference.calls


@pytest.mark.parametrize("text", ["模型 100%😀"])
def test_any_text_is_a_model_id_when_it_is_encoded(tmp_path, text):
    """T42."""
    body = {"inputs": [tensor(data=[1, 2])]}
    answer, _ = ask(tmp_path, body, f"/v2/models/{quote(text, safe='')}/infer")
    assert answer.json()["model_name"] == text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/none/infer", 404),
        ("/v2/models/plain/versions/9/infer", 404),
        ("/v2/models/plain/versions/1/infer", 200),
        ("/v2/models/plain/infer#part", 200),
        ("http://din/v2/models/plain/infer#part", 200),
        ("/v2/models/%ff/infer", 400),
        ("/v2/models//infer", 400),
        ("/v2/models/plain/wrong/1/infer", 404),
    ],
)
def test_paths_lead_to_models_or_errors_of_this_api(tmp_path, path, status):
    answer, _ = ask(tmp_path, {"inputs": [tensor(data=[1, 2])]}, path)
    assert answer.status == status
    if status != 200:
        assert isinstance(answer.json()["error"], str)
