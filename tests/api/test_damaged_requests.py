"""Bodies, heads, queries and paths of requests, damaged: taken or refused in our own words, in
memory and work in proportion to their size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from api_fakes import FACES, MODELS, PLAIN

from din.api import access, control, examining, trust
from din.api.decoding import decode_json
from din.api.oip import oip_call, parse_known_oip, parse_oip
from din.api.oip_heads import Heads
from din.api.post import INFER_TARGET, Post, query_of, request_id_of, target_of
from din.api.seeds import infer_call, parse_infer
from din.api.signature import model_id_of
from din.errors import DinError
from tests import mutants

SHORT, LONG = 1500, 100_000
ECHO = {each.model_id: each for each in MODELS}
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1]}
OIP = (
    {"id": "1", "inputs": [TENSOR], "outputs": [{"name": "out_x"}]},
    {
        "inputs": [TENSOR | {"data": [[0.5, 1]], "parameters": {}}],
        "outputs": [{"name": "out_x", "parameters": {"binary_data": True}}],
        "parameters": {"timeout_ms": 50, "precision": "fp16", "allow_random_retry": True},
    },
)
SEEDS = (
    {"model_id": "faces", "input_data": "/9j/4AAQ", "timeout_ms": 5000, "request_id": "r"},
    {"model_id": "plain", "inputs": [TENSOR], "outputs": ["out_x"], "precision": "exact"},
)
ORDERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "labels": (control._LABELS, {"labels": {"line": "4", "side": None}}),
    "model": (
        control._ORDER,
        {
            "model_id": "m", "source_sha256": "0" * 64, "replicas": 2, "inputs": {"x": ["N", 3]},
            "slicing_strategy": {"type": "graph_partition", "partition_points": ["a"]},
            "before": {"name": "image"}, "encrypt": None,
        },
    ),
    "key": (access._ORDER, {"name": "line-4", "scopes": ["infer"]}),
    "profile": (examining._PROFILE, {"node": "edge-1", "shapes": {"x": [1, 3]}, "rounds": 3}),
    "verify": (examining._VERIFY, {"seed": 1, "inputs": [TENSOR | {"data": "AAAA"}]}),
    "token": (trust._CREATE, {}),
}  # fmt: skip


def post(body: bytes, headers: dict[bytes, bytes] | None = None, query: bytes = b"") -> Post:
    return Post(INFER_TARGET, query, headers or {}, [body] if body else [], len(body))


def oip(body: bytes, headers: dict[bytes, bytes] | None = None) -> None:
    oip_call(parse_oip(post(body, headers), Heads()), PLAIN, None, "r")


def infer(body: bytes, query: bytes = b"") -> None:
    parsed = parse_infer(post(body, query=query))
    manifest = FACES if parsed.request.inputs is None else PLAIN
    infer_call(parsed, manifest, request_id_of(parsed.request.request_id, {}))


def damaged(values: tuple[Any, ...], count: int, seed: int) -> Iterator[bytes]:
    yield from map(mutants.as_json, mutants.value_mutants(values, count // 2, seed))
    yield from mutants.bytes_mutants([mutants.as_json(each) for each in values], count // 2, seed)


def bodies(count: int, seed: int) -> Iterator[tuple[Callable[[bytes], object], Iterator[bytes]]]:
    yield oip, damaged(OIP, count, seed)
    yield infer, damaged(SEEDS, count, seed)
    for what, (decoder, order) in ORDERS.items():
        yield (
            lambda body, d=decoder, w=what: decode_json(d, body, w),
            damaged((order,), count, seed),
        )


def test_damaged_bodies_are_taken_or_refused_in_our_words() -> None:
    for parse, made in bodies(SHORT, 1):
        _, refused = mutants.check(parse, made, DinError)
        assert refused > SHORT / 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_damaged_bodies_are_taken_or_refused_in_our_words(seed: int) -> None:
    for parse, made in bodies(LONG, seed):
        mutants.check(parse, made, DinError)


@pytest.mark.parametrize("word", ["FP32", "BYTES", "BOOL", "INT64", "BF16"])
def test_damaged_binary_requests_are_taken_or_refused_in_our_words(word: str) -> None:
    """The head may lie about its own length, and about the bytes behind it; what was found good
    once is not taken for good with other bytes."""
    manifest = ECHO[f"echo-{word}"]
    raw = {"BYTES": b"\x04\0\0\0face", "BOOL": b"\1", "INT64": bytes(8), "BF16": b"\x80\x3f"}
    content = raw.get(word, bytes(4))
    tensor = {"name": "x", "datatype": word, "shape": [1]}
    request = {
        "inputs": [tensor | {"parameters": {"binary_data_size": len(content)}}],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(request).encode()
    heads = Heads()
    length = b"inference-header-content-length"

    def ask(body: bytes) -> None:
        for size in (str(len(head)).encode(), str(len(body) - len(content)).encode(), b"-1"):
            one = post(body, {length: size})
            known = parse_known_oip(one, heads, manifest) if body else None
            call = oip_call(known or parse_oip(one, heads), manifest, None, "r")
            assert sum(map(len, call.chunks[0])) == call.metas[0].nbytes

    good = head + content
    made = mutants.bytes_mutants([good, head, content], SHORT, 4)
    _, refused = mutants.check(ask, made, DinError)
    assert refused > SHORT / 10


def test_damaged_queries_paths_and_ids_are_taken_or_refused_in_our_words() -> None:
    queries = [b"model=faces&timeout_ms=70&precision=fp16&outputs=a,b", b"dry-run=true&model=%E8"]
    paths = [b"/v2/models/plain/infer", b"/v2/models/a%2Fb/versions/1/infer", b"/infer"]

    def model(path: bytes) -> None:
        target = target_of(path)
        if target is not None and target.kind == "oip":
            model_id_of(target.model)

    body = mutants.as_json(SEEDS[1])
    mutants.check(query_of, mutants.bytes_mutants(queries, SHORT, 5), DinError)
    mutants.check(
        lambda query: infer(body, query), mutants.bytes_mutants(queries, SHORT, 6), DinError
    )
    mutants.check(model, mutants.bytes_mutants(paths, SHORT, 7), DinError)
    ids = mutants.bytes_mutants([b"req-8a3f2b1c"], SHORT, 8)
    mutants.check(lambda raw: request_id_of(None, {b"x-request-id": raw}), ids, DinError)


def large(count: int) -> Iterator[bytes]:
    names = [{"name": f"n{at}"} for at in range(count)]
    long = "x" * count * 10
    for request in (
        OIP[0] | {"outputs": names},
        OIP[0] | {"outputs": [{"name": "x" * 4000}] * (count // 10)},
        OIP[0] | {"inputs": [TENSOR] * count},
        OIP[0] | {"id": long},
        OIP[0] | {"inputs": [TENSOR | {"shape": [count], "data": [1] * count}]},
        OIP[0] | {"inputs": [TENSOR | {"shape": [1] * count}]},
        OIP[0] | {"inputs": [TENSOR | {"datatype": long}]},
        OIP[0] | {"parameters": {f"k{at}": at for at in range(count)}},
        SEEDS[0] | {"input_data": "A" * 40 * count},
        SEEDS[0] | {"input_data": "A\n" * 20 * count + "-"},
        SEEDS[0] | {"input_data": "=" * 20 * count},
        SEEDS[0] | {long: 1},
        SEEDS[0] | {"model_id": "e\u0301" * count * 5},
    ):
        yield msgspec.json.encode(request)
    yield b"[" * 20 * count
    yield b'{"inputs":' + b"[" * 20 * count
    yield b'{"zzz":' + b'{"a":' * 5 * count
    yield b"9" * 20 * count
    yield b'{"id":"' + b"\\u0041" * 5 * count


@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_large_bodies_cost_in_proportion_to_their_size(count: int) -> None:
    for parse in (oip, infer):
        mutants.check_cost(parse, large(count), DinError)
