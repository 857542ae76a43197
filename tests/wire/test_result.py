"""The binary form of results and traces: what others read in it, and what strangers may send."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.domain.request import AttemptRecord, Span, Trace, TraceStep
from din.domain.result import Result, result_of_trace
from din.domain.tensor import TensorMeta, nbytes_of
from din.errors import TooLarge, UsageError
from din.wire.flat import BUFFER_BYTES_MAX, VISITED_MAX
from din.wire.result import IDENTIFIER, decode_result, encode_result

SCHEMA = Path(__file__).parents[2] / "docs" / "protocol" / "result.fbs"
MUTANTS = 3000
DAMAGE = (UsageError, TooLarge)
"""What a client may meet in bytes of a stranger, and nothing else."""

STEPS = (
    TraceStep(node="edge-1", phase="backbone", latency_ms=17.25, gpu_util=0.0, slice_index=0),
    TraceStep(
        node="边缘-2", phase="head", latency_ms=0.0, queue_ms=1.5, wait_ms=0.5, slice_index=1
    ),
)
TRACE = Trace(
    request_id="req-8a3f2b1c",
    model_id="faces",
    version="1",
    started_at="2026-01-01T00:00:00Z",
    status="failed",
    duration_ms=20.5,
    execution_trace=STEPS,
    spans=(
        Span(node="a", slice_index=0, phase="body", kind="compute", start_ms=1, duration_ms=2),
        Span(node="b", slice_index=-1, phase="gateway", kind="encode", start_ms=3, duration_ms=0,
             compressed_bytes=300, uncompressed_bytes=2**40),
    ),
    attempts=(
        AttemptRecord(attempt=1, nodes=("edge-1", "edge-2"), outcome="silent", duration_ms=9.0),
        AttemptRecord(attempt=2, nodes=(), outcome="completed", duration_ms=11.5),
    ),
    path="direct",
    precision="fp16",
    error="DIN-330: edge-2 went silent",
)  # fmt: skip
CONTENTS = (
    b"\x00\x00\xc0\x7f\x00\x00\x80\xff\xcd\xcc\xcc\x3d",
    b"",
    b"\x04\0\0\0face",
    b"\xc0\x7f",
    b"7",
)
RESULT = Result(
    request_id="req-8a3f2b1c",
    model_id="faces",
    version="1",
    is_adapted=True,
    outputs=(
        TensorMeta("scores", "FP32", (1, 3), 12),
        TensorMeta("none", "INT64", (0, 4), 0),
        TensorMeta("labels", "BYTES", (1,), 8),
        TensorMeta("bits", "BF16", (1,), 2),
        TensorMeta("one", "UINT8", (), 1),
    ),
    execution_trace=STEPS,
)  # fmt: skip


def message(result: Result, contents: tuple[bytes, ...] = ()) -> bytes:
    return b"".join(encode_result(result, [memoryview(each) for each in contents]))


def table_of(data: bytes) -> bytes:
    return data[: 4 + int.from_bytes(data[:4], "little")]


def flatc(folder: Path, *words: str) -> None:
    subprocess.run(["flatc", "-o", str(folder), *words], check=True, timeout=60)


def read_by_others(folder: Path, data: bytes) -> dict:
    (folder / "made.bin").write_bytes(table_of(data))
    options = ("--json", "--strict-json", "--defaults-json", "--size-prefixed")
    flatc(folder, *options, str(SCHEMA), "--", str(folder / "made.bin"))
    return json.loads((folder / "made.json").read_text())


def test_a_result_comes_back_as_it_was_and_its_tensors_are_views_of_the_message():
    data = message(RESULT, CONTENTS)
    found, views = decode_result(data)
    assert found == RESULT
    assert tuple(map(bytes, views)) == CONTENTS
    start = -(-len(table_of(data)) // 64) * 64
    assert data[start:].startswith(CONTENTS[0]), "tensors begin at the next multiple of 64"
    assert all(each.obj is data for each in views)


def test_a_trace_comes_back_as_it_was():
    found, views = decode_result(message(result_of_trace(TRACE)))
    assert found.trace == TRACE
    assert views == ()


def test_the_compiler_of_the_schema_reads_in_it_what_json_says(tmp_path):
    read = read_by_others(tmp_path, message(RESULT, CONTENTS))
    assert read["execution_trace"] == json.loads(msgspec.json.encode(STEPS))
    assert read["outputs"][0] == {
        "name": "scores", "datatype": "FP32", "shape": [1, 3], "offset": 0, "nbytes": 12,
    }  # fmt: skip
    assert [each["offset"] for each in read["outputs"]] == [0, 64, 64, 128, 192]
    assert read["is_adapted"] is True
    read = read_by_others(tmp_path, message(result_of_trace(TRACE)))
    more = read.pop("trace")
    del read["is_adapted"]
    more["attempts"][1]["nodes"] = []  # an empty list is left out
    empty = {"isolated_for": ""}  # so is an empty text
    assert {**read, **empty, **more} == json.loads(msgspec.json.encode(TRACE))


def test_what_the_compiler_writes_from_json_is_read(tmp_path):
    """Another writer lays tables out in another order, and shares what is equal."""
    known = json.loads(msgspec.json.encode(TRACE))
    top = ("request_id", "model_id", "version", "status", "execution_trace")
    given_form = {name: known.pop(name) for name in top} | {"trace": known}
    (tmp_path / "made.json").write_text(json.dumps(given_form))
    flatc(tmp_path, "--binary", "--size-prefixed", str(SCHEMA), str(tmp_path / "made.json"))
    assert decode_result((tmp_path / "made.dinr").read_bytes())[0].trace == TRACE


def test_the_vectors_are_read_as_they_say():
    rows = json.loads((SCHEMA.parent / "vectors" / "result.json").read_text())
    for row, known in zip(rows, (RESULT, result_of_trace(TRACE)), strict=True):
        found, views = decode_result(bytes.fromhex(row["hex"]))
        assert found == known == msgspec.convert(row["result"], Result)
        assert [each.hex() for each in views] == row["tensors_hex"]


words = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
numbers = st.floats(0, 1e9, allow_nan=False)
steps = st.builds(
    TraceStep,
    node=words,
    phase=words,
    latency_ms=numbers,
    gpu_util=st.none() | st.floats(0, 100),
    queue_ms=numbers,
    wait_ms=numbers,
    slice_index=st.integers(-1, 2**31 - 1),
)


@given(
    st.lists(steps, max_size=5),
    st.lists(st.tuples(words, st.lists(st.integers(0, 5), max_size=4)), max_size=5),
    words,
    st.booleans(),
)
def test_every_result_comes_back(steps, shapes, word, is_adapted):
    metas = tuple(
        TensorMeta(name, "INT16", tuple(shape), nbytes_of("INT16", tuple(shape)))
        for name, shape in shapes
    )
    contents = tuple(bytes([7]) * meta.nbytes for meta in metas)
    result = Result(
        request_id=word,
        model_id=word,
        version=word,
        status=word,
        is_adapted=is_adapted,
        outputs=metas,
        execution_trace=tuple(steps),
    )
    found, views = decode_result(message(result, contents))
    assert found == result
    assert tuple(map(bytes, views)) == contents


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_words(data):
    for each in (data, b"%s\x10\0\0\0DINR%s" % (struct.pack("<I", len(data) + 8), data)):
        with pytest.raises(DAMAGE) as caught:
            decode_result(each)
        assert caught.value.message.startswith("the result")


def mutants(data: bytes, count: int, seed: int):
    """Damage where it hurts: bits, offsets and lengths, ends, pieces twice."""
    draw = random.Random(seed)
    for _ in range(count):
        made = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(made) - 4)
            kind = draw.randrange(6)
            if kind == 0:
                made[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                value = draw.choice(
                    (0, 1, 4, 2**31 - 1, 2**32 - 1, len(made), draw.getrandbits(32))
                )
                made[at : at + 4] = struct.pack("<I", value)
            elif kind == 2:
                at -= at % 2
                made[at : at + 2] = struct.pack("<H", draw.choice((0, 2, 4, 5, 40, 65535)))
            elif kind == 3:
                made[at : at + 8] = struct.pack(
                    "<d", draw.choice((float("nan"), float("inf"), -1e300))
                )
            elif kind == 4:
                del made[draw.randrange(12, len(made)) :]
            else:
                end = min(len(made), at + draw.randrange(1, 40))
                made[at:at] = made[at:end]
            if len(made) < 16:
                break
        yield bytes(made)


def check_mutants(count: int, seed: int) -> tuple[int, int]:
    read = refused = 0
    for data in (message(RESULT, CONTENTS), message(result_of_trace(TRACE))):
        for each in mutants(data, count, seed):
            try:
                found, views = decode_result(each)
            except DAMAGE:
                refused += 1
                continue
            read += 1
            assert sum(map(len, views)) <= len(each) * len(views)
            msgspec.json.encode(found)
    return read, refused


def test_damaged_messages_are_read_or_refused_and_never_break_the_reader():
    read, refused = check_mutants(MUTANTS, 7)
    assert read > 100, "most bytes are text or numbers"
    assert refused > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_damaged_messages_are_read_or_refused(seed):
    check_mutants(40_000, seed)


def bomb(rows: int, text_nbytes: int) -> bytes:
    """A vector of offsets that all mean one long text: little to send, much to keep."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    name = builder.CreateString("r")
    text = builder.CreateString("x" * text_nbytes)
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    step = builder.EndObject()
    builder.StartVector(4, rows, 4)
    for _ in range(rows):
        builder.PrependUOffsetTRelative(step)
    listed = builder.EndVector()
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUOffsetTRelativeSlot(1, name, 0)
    builder.PrependUOffsetTRelativeSlot(6, listed, 0)
    builder.FinishSizePrefixed(builder.EndObject(), IDENTIFIER)
    return bytes(builder.Output())


def test_a_text_that_is_meant_again_and_again_takes_no_memory():
    data = bomb(1000, 100_000)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match=f"over {VISITED_MAX} times"):
            decode_result(data)
        assert tracemalloc.get_traced_memory()[1] < (VISITED_MAX + 4) * len(data)
    finally:
        tracemalloc.stop()
    assert len(decode_result(bomb(5, 1000))[0].execution_trace) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:200], "says"),
        (lambda data: data[:-70], "cut short"),
        (lambda data: data[:8] + b"NDIR" + data[12:], "instead of b'DINR'"),
        (lambda data: b"", "0 bytes"),
        (lambda data: struct.pack("<I", BUFFER_BYTES_MAX + 1) + data[4:], "limit"),
        (lambda data: data.replace(b"FP32", b"FP33"), "'FP33'"),
        (lambda data: data.replace(b"FP32", b"FP64"), "has 12 bytes"),
        (lambda data: data.replace(b"scores", b"sc\xffres"), "not UTF-8"),
        (lambda data: data.replace(struct.pack("<d", 17.25), struct.pack("<d", 1e16)), "1e+16"),
    ],
)
def test_damage_is_told_by_what_it_is(change, words):
    with pytest.raises(DAMAGE) as caught:
        decode_result(change(message(RESULT, CONTENTS)), "photo.dinr")
    assert words in caught.value.story()
    assert "photo.dinr" in caught.value.message


def test_words_of_newer_versions_are_named():
    for old, new in ((b"compute", b"COMPUTE"), (b"fp16", b"fp17")):
        with pytest.raises(UsageError, match=new.decode()) as caught:
            decode_result(message(result_of_trace(TRACE)).replace(old, new))
        assert "newer" in caught.value.hint


def test_a_text_over_the_limit_is_not_written():
    with pytest.raises(TooLarge):
        message(msgspec.structs.replace(RESULT, model_id="x" * (1024 * 1024 + 1)))
