"""Runs of a worker that takes and gives compressed tensors, in a process of its own."""

import json

import pytest

from tests.worker.test_faults import play

PRELUDE = """
import json
import numpy as np
from din.domain.tensor import ZSTD
from din.worker.compression import Compressor
from din.wire.worker import WorkerAnswer

COUNT = 8192
layout = arena_layout(65536, 65536)
arena = create_arena(layout)
memory = map_arena(arena, layout)
ours, theirs = control_pair()

class Twice(Engine):
    inputs = (TensorSpec("x", "FP32", ("n",)), TensorSpec("other", "FP32", ("n",)))
    outputs = (
        TensorSpec("y", "FP32", ("n",)),
        TensorSpec("small", "FP32", (4,)),
        TensorSpec("words", "BYTES", (1,)),
        TensorSpec("noise", "FP32", None),
    )
    def run(self, inputs, wanted, targets):
        words = np.empty(1, np.object_)
        words[0] = bytes(30000)
        noise = np.random.default_rng(1).integers(0, 2**32, 6000, np.uint32).view(np.float32)
        made = {"y": inputs["x"] + inputs["other"], "small": np.zeros(4, np.float32),
                "words": words, "noise": noise}
        return {name: made[name] for name in wanted}

engine = Twice()
feed = Feed(theirs, map_arena(arena, layout), layout)
dog = watchdog.Watchdog([feed], engine.stop)
server = Server(engine, [feed], dog)
threading.Thread(target=server.serve_forever, daemon=True).start()
decoder = msgspec.msgpack.Decoder(WorkerAnswer)
numbers = iter(range(1, 100))

def ask(x, compressed=(), wanted=(), shape=None, other=None, remaining_ms=5000):
    placed = []
    end = 0
    for name, value in (("x", x), ("other", x if other is None else other)):
        is_frame = isinstance(value, bytes)
        data = value if is_frame else value.tobytes()
        meta = TensorMeta(name, "FP32", shape or (COUNT,), len(data), ZSTD if is_frame else "")
        memory[end : end + len(data)] = data
        placed.append(Placed(meta, end))
        end = -(-(end + len(data)) // 64) * 64
    ours.send(msgspec.msgpack.encode(Compute(
        next(numbers), tuple(placed), wanted, remaining_ms, 0, (), compressed)))
    return decoder.decode(ours.recv(65536))

def tell(answer):
    told = {"kind": type(answer).__name__}
    if hasattr(answer, "outputs"):
        told["metas"] = {each.meta.name: [each.meta.nbytes, each.meta.compression]
                         for each in answer.outputs}
        told["encode_us"] = answer.encode_us
        ours.send(msgspec.msgpack.encode(Release(answer.ticket)))
    else:
        told.update(code=answer.code, message=answer.message, retry=answer.is_retryable,
                    tensor=answer.tensor)
    print(json.dumps(told), flush=True)

from din.wire.worker import Release
x = (np.arange(COUNT) // 64).astype(np.float32)
frame = Compressor().compress(x)
"""


def told(story: str) -> list[dict]:
    code, said = play("def act(engine, inputs, targets): ...\n", PRELUDE + story)
    assert code == 0, said
    return [json.loads(line) for line in said.splitlines()]


def test_outputs_are_compressed_where_that_is_asked_and_makes_them_smaller() -> None:
    plain, packed, back = told(
        "tell(ask(x, wanted=('y',)))\n"
        "every = ('y', 'small', 'words', 'noise')\n"
        "answer = ask(frame, compressed=every, wanted=('y', 'small', 'words'))\n"
        "place = answer.outputs[0]\n"
        "data = bytes(memory[place.offset : place.offset + place.meta.nbytes])\n"
        "found = Compressor().decompress(memoryview(data), place.meta)\n"
        "assert found.tobytes() == (x + x).tobytes()\n"
        "tell(answer)\n"
        "tell(ask(frame, compressed=every, wanted=('noise',)))\n"
    )
    assert plain["metas"] == {"y": [32768, ""]}
    assert plain["encode_us"] == 0
    size, compression = packed["metas"].pop("y")
    assert compression == "zstd"
    assert size < 32768 / 2
    assert packed["metas"] == {"small": [16, ""], "words": [30004, ""]}
    assert packed["encode_us"] > 0
    assert back["metas"] == {"noise": [24000, ""]}


def test_more_comes_compressed_than_would_fit_as_it_is() -> None:
    """Two outputs of 32 KiB take the whole region; compressed, many fit."""
    answers = told(
        "for _ in range(3):\n"
        "    print(json.dumps({'kind': type(ask(frame, ('y',), ('y',))).__name__}), flush=True)\n"
    )
    assert [each["kind"] for each in answers] == ["Computed"] * 3


@pytest.mark.parametrize(
    ("asked", "words", "spoiled"),
    [
        (
            "bytes(40)",
            "input 'x' FP32 [8192] came compressed into 40 bytes that cannot be read",
            "x",
        ),
        (
            "frame, other=b'x' * 99",
            "input 'other' FP32 [8192] came compressed into 99 bytes that cannot be read",
            "other",
        ),
        ("frame + frame", "input 'x' FP32 [8192] came compressed into", "x"),
        ("bytes(32768)", "input 'x' of shape [8192] FP32 came in 32768 bytes as 'zstd'", ""),
        ("b''", "input 'x' of shape [8192] FP32 came in 0 bytes as 'zstd'", ""),
        (
            "frame, shape=(2**31,)",
            "compressed inputs ('x', 'other') of 17179869184 bytes in all",
            "",
        ),
        ("frame, shape=(8191,)", "announces 32768 bytes, its shape 32764 bytes", "x"),
    ],
    ids=[
        "no frame",
        "a second one",
        "two frames",
        "as large as the tensor",
        "nothing",
        "a bomb",
        "another shape",
    ],
)
def test_a_bad_frame_fails_its_run_and_the_worker_lives(
    asked: str, words: str, spoiled: str
) -> None:
    refused, fine = told(f"tell(ask({asked}))\ntell(ask(frame, ('y',), ('y',)))\n")
    assert refused["kind"] == "ComputeFailed"
    assert words in refused["message"]
    assert refused["tensor"] == spoiled
    assert refused["retry"] == bool(spoiled)
    assert fine["kind"] == "Computed"


def test_nothing_is_compressed_for_who_does_not_wait_any_more() -> None:
    """The engine does not listen, and the deadline passes while it runs."""
    late, fine = told(
        "def slow(inputs, wanted, targets):\n"
        "    while not dog.reason:\n"
        "        time.sleep(0.01)\n"
        "    return {'y': inputs['x'] + inputs['other']}\n"
        "quick, engine.run = engine.run, slow\n"
        "tell(ask(frame, ('y',), ('y',), remaining_ms=50))\n"
        "engine.run = quick\n"
        "tell(ask(frame, ('y',), ('y',)))\n"
    )
    assert (late["kind"], late["code"]) == ("ComputeFailed", "DIN-400")
    assert fine["kind"] == "Computed"
