"""A large batch over several replicas: shards, retries of one of them, one answer, one trace."""

from __future__ import annotations

import asyncio
from random import Random

import numpy as np
import pytest
from dispatch_play import MODEL, Play, error_of, fails, run
from gateway_fakes import NODE_A, NODE_B, Reports, chain_of, serving_of, timing

from din.domain.model import GATEWAY, CarveAnswer, Edge, Slice, Tiles
from din.domain.strategy import WAYS_MAX, Strategy
from din.domain.tensor import TensorMeta, TensorSpec
from din.errors import BadStrategy, BadTensor, ExecutionFailed, TooLarge
from din.gateway.registration.tiles import shards_of, tiles_of
from din.gateway.requests.sharding import Sharding
from din.gateway.service import InferenceAnswer, InferenceCall
from din.gateway.telemetry.traces import TraceBook
from din.wire.messages import Result

TILES = Tiles(rows_max=2, split=("t0",))


def rows_of(frame, node_id):
    """Answers as many rows as it was given."""
    shape = frame.tensors[0].shape
    meta = TensorMeta("t1", "UINT8", shape, int(np.prod(shape)))
    timings = (timing(frame.slice_index, node_id),)
    return Result(frame.request_id, frame.attempt, frame.slice_index, (meta,), timings, 0)


def play_of() -> Play:
    play = Play(serving_of(chain_of(1), tiles=TILES))
    play.ready(NODE_A, NODE_B)
    play.nodes |= {NODE_A: rows_of, NODE_B: rows_of}
    return play


def batch(rows: int, **more) -> InferenceCall:
    data = np.arange(rows * 4, dtype=np.uint8)
    # In two pieces, as a socket may have given it.
    pieces = (data[:3].tobytes(), data[3:].tobytes())
    meta = TensorMeta("t0", "UINT8", (rows, 4), rows * 4)
    return InferenceCall(model_id=MODEL, metas=(meta,), chunks=(pieces,), is_adapted=False, **more)


# Over a real relay.


def test_a_large_batch_is_spread_over_the_replicas_and_has_one_trace():
    async def story(_: Play) -> None:
        play = play_of()
        answer = await play.dispatch.infer(batch(5, request_id="mine"))
        assert [meta.shape for meta in answer.metas] == [(5, 4)]
        phases = ["part0[0:1]", "part0[1:3]", "part0[3:5]"]
        assert [step.phase for step in answer.steps] == phases
        assert {step.node for step in answer.steps} == {"node-a", "node-b"}
        (kept,) = play.traces.newest(9)
        assert (kept.request_id, kept.status, kept.path) == ("mine", "completed", "shards")
        assert kept.execution_trace == answer.steps
        assert {span.phase for span in kept.spans} >= set(phases)
        assert len(kept.attempts) == 3
        assert play.counted() == {"ok": 1.0}

    run(story)


def test_a_batch_within_the_limit_is_an_ordinary_request():
    async def story(_: Play) -> None:
        play = play_of()
        answer = await play.dispatch.infer(batch(2))
        assert [step.phase for step in answer.steps] == ["part0"]
        assert len(play.runs) == 1

    run(story)


def test_a_shard_that_fails_is_tried_again_elsewhere():
    async def story(_: Play) -> None:
        play = play_of()
        await play.dispatch.infer(batch(4))
        play.nodes[NODE_B] = fails
        answer = await play.dispatch.infer(batch(4, request_id="again"))
        assert {step.node for step in answer.steps} == {"node-a"}
        outcomes = [each.outcome for each in play.traces.find("again").attempts]
        assert outcomes.count("completed") == 2
        assert any("it broke" in each for each in outcomes)

    run(story)


def test_a_shard_that_fails_for_good_fails_the_whole_naming_its_rows():
    async def story(_: Play) -> None:
        play = play_of()
        await play.dispatch.infer(batch(4))
        play.nodes |= {NODE_A: fails, NODE_B: fails}
        error = await error_of(asyncio.ensure_future(play.dispatch.infer(batch(4))))
        assert isinstance(error, ExecutionFailed)
        assert error.message.startswith("rows ")
        kept = play.traces.find("last")
        assert (kept.status, kept.path) == ("failed", "shards")
        assert kept.error.startswith("DIN-330: rows")
        assert all(each.inflight == 0 for each in play.serving.replicas(0).values())

    run(story)


def test_a_batch_without_a_task_is_left_to_those_with_one():
    async def story(_: Play) -> None:
        play = play_of()
        assert play.dispatch.start(batch(4), lambda _: None) is None

    run(story)


# What is computed.


class Durations(TraceBook):
    """Traces that tell only how long requests took."""

    def __init__(self) -> None:
        super().__init__(str, lambda: "now")
        self.told: list[float] = []

    def join(self, request_id, labels, tenant, duration_ms, status, error):
        self.told.append(duration_ms)
        return ()


def sharded(
    compute, rows: int, reports: Reports, tiles: Tiles = TILES, traces: TraceBook | None = None
):
    """Answer of a batch whose runs compute this function, each in 10 ms of the clock; and how many
    rows each run had."""
    ran: list[int] = []
    released: list[int] = []

    async def one(call: InferenceCall) -> InferenceAnswer:
        await asyncio.sleep(0)
        given = [
            np.frombuffer(b"".join(pieces), np.float32).reshape(meta.shape)
            for meta, pieces in zip(call.metas, call.chunks, strict=True)
        ]
        made = np.ascontiguousarray(compute(*given), np.float32)
        ran.append(len(given[0]))
        meta = TensorMeta("y", "FP32", made.shape, made.nbytes)
        return InferenceAnswer(
            request_id=call.request_id or "",
            model_id=MODEL,
            version="1",
            metas=(meta,),
            views=[memoryview(made.tobytes())],
            steps=(),
            release=lambda: released.append(1),
        )

    async def whole():
        book = traces or TraceBook(str, lambda: "now")
        sharding = Sharding(book, lambda: 10.0 * len(ran), Random(1), reports, lambda _: 100)
        serving = serving_of(chain_of(1), tiles=tiles)
        x = np.linspace(-1, 1, rows * 3, dtype=np.float32).reshape(rows, 3)
        scale = np.full((3,), 2, np.float32)
        metas = (
            TensorMeta("t0", "FP32", x.shape, x.nbytes),
            TensorMeta("s", "FP32", (3,), scale.nbytes),
        )
        chunks = ((x.tobytes()[:7], x.tobytes()[7:]), (scale.tobytes(),))
        call = InferenceCall(model_id=MODEL, metas=metas, chunks=chunks, is_adapted=False)
        answers = []
        for _ in range(2):
            shards = sharding.shards(serving, call)
            answers.append(
                await sharding.run(serving, call, shards, one) if shards else await one(call)
            )
        return x, answers

    x, answers = asyncio.run(whole())
    values = [np.frombuffer(each.views[0], np.float32) for each in answers]
    return x, values, ran, released


def test_rows_come_together_in_order_and_the_trial_runs_once():
    x, values, ran, released = sharded(lambda x, s: x * s, 5, Reports())
    for each in values:
        assert np.array_equal(each.reshape(5, 3), x * 2)
    assert ran == [2, 1, 1] + [1, 2, 2] * 2
    assert len(released) == len(ran)


def test_a_batch_took_as_long_as_its_trial_and_its_shards():
    traces = Durations()
    _, _, ran, _ = sharded(lambda x, s: x * s, 5, Reports(), traces=traces)
    assert len(ran) == 9
    assert traces.told == [60.0, 30.0]


def test_a_model_that_mixes_rows_is_found_out_and_answered_whole():
    reports = Reports()
    x, values, ran, _ = sharded(lambda x, s: (x - x.mean(axis=0)) * s, 5, reports)
    for each in values:
        assert np.allclose(each.reshape(5, 3), (x - x.mean(axis=0)) * 2)
    assert ran == [2, 1, 1, 5, 5]
    (said,) = reports.of("rows are not apart, batches are answered whole")
    assert "differs when apart" in str(said["cause"])


def test_a_model_whose_output_has_other_rows_is_answered_whole():
    reports = Reports()
    _, values, ran, _ = sharded(lambda x, s: x.sum(axis=0, keepdims=True) * s, 5, reports)
    assert [len(each) for each in values] == [3, 3]
    assert ran == [2, 5, 5]
    assert "for 2 rows" in str(reports.of("rows are not apart, batches are answered whole")[0])


def test_sizes_that_depend_on_the_data_cannot_be_put_together():
    def compute(x, s):
        return x[:, : 1 + (x.max() > 0.5)]

    with pytest.raises(ExecutionFailed, match="in one shard and"):
        sharded(compute, 5, Reports())


def test_inputs_with_different_numbers_of_rows_are_refused():
    with pytest.raises(BadTensor, match="have \\[3, 5\\] rows"):
        sharded(lambda x, s: x, 5, Reports(), Tiles(ways=2, split=("t0", "s")))


# Which models, which shards.


@pytest.mark.parametrize(
    ("rows", "tiles", "found"),
    [
        (0, Tiles(rows_max=2), [(0, 0)]),
        (2, Tiles(rows_max=2), [(0, 2)]),
        (7, Tiles(rows_max=3), [(0, 2), (2, 4), (4, 7)]),
        (7, Tiles(ways=3), [(0, 2), (2, 4), (4, 7)]),
        (2, Tiles(ways=3), [(0, 1), (1, 2)]),
        (WAYS_MAX * 2, Tiles(rows_max=2), [(i * 2, i * 2 + 2) for i in range(WAYS_MAX)]),
    ],
)
def test_rows_are_split_as_equally_as_they_can_be(rows, tiles, found):
    assert shards_of(rows, tiles) == found


@pytest.mark.parametrize(
    ("rows", "percent", "sizes"),
    [
        (16, 100, [8, 8]),
        (16, 50, [4, 4, 4, 4]),
        (3, 25, [1, 2]),
        (3, 1, [1, 1, 1]),
        (8 * WAYS_MAX, 1, [8] * WAYS_MAX),
    ],
)
def test_shards_shrink_with_what_heat_leaves_and_never_become_too_many(rows, percent, sizes):
    found = shards_of(rows, Tiles(rows_max=8), percent)
    assert [end - start for start, end in found] == sizes


def test_ways_are_not_more_because_of_heat():
    assert len(shards_of(9, Tiles(ways=3), 25)) == 3


def test_a_node_that_its_governor_holds_back_makes_the_shards_of_a_batch_smaller():
    async def story(_: Play) -> None:
        play = play_of()
        answer = await play.dispatch.infer(batch(4))
        assert len(answer.steps) == 2
        play.capacity[NODE_B] = 50
        answer = await play.dispatch.infer(batch(4))
        assert [meta.shape for meta in answer.metas] == [(4, 4)]
        assert len(answer.steps) == 4
        play.capacity[NODE_B] = 100
        assert len((await play.dispatch.infer(batch(4))).steps) == 2

    run(story)


def test_more_shards_than_allowed_are_refused():
    with pytest.raises(TooLarge, match="makes 65 shards"):
        shards_of(WAYS_MAX * 2 + 1, Tiles(rows_max=2))


def carved(inputs, outputs, **part):
    def specs(shapes):
        return tuple(
            TensorSpec(name, shape[0] if isinstance(shape[0], str) and shape[0].isupper()
                       and len(shape[0]) > 1 else "FP32", shape[1:] if len(str(shape[0])) > 1
                       else shape)
            for name, shape in shapes.items()
        )  # fmt: skip

    whole = Slice(index=0, slice_id="s", name="whole", inputs=(), outputs=(), **part)
    return CarveAnswer(
        source_sha256="0",
        inputs=specs(inputs),
        outputs=specs(outputs),
        slices=(whole,),
        edges=(Edge("x", GATEWAY, (0,)),),
        cuts=(),
        operators=1,
        opset=17,
        ir_version=9,
    )


STRATEGY = Strategy(type="input_tiles", rows_max=8)


def test_inputs_that_begin_with_the_batch_are_split_and_others_go_everywhere():
    found = tiles_of(STRATEGY, carved({"x": ("N", 3), "s": (4, 2)}, {"y": ("N", 9)}))
    assert found == Tiles(rows_max=8, split=("x",))
    assert tiles_of(Strategy(), carved({"x": (1, 3)}, {"y": (1,)})) is None


@pytest.mark.parametrize(
    ("inputs", "outputs", "part", "says"),
    [
        ({"x": (1, 3)}, {"y": (1, 3)}, {}, "one free size of one name, here they are x [1, 3]"),
        ({"x": ("N", 3), "z": ("M", 3)}, {"y": ("N", 3)}, {}, "one free size of one name"),
        ({"x": ("N", 3)}, {"y": (1, 3)}, {}, "cannot take 'y' apart: it is FP32 [1, 3]"),
        ({"x": ("N", 3)}, {"y": ("M", 3)}, {}, "does not begin with N"),
        ({"x": ("N", 3)}, {"y": ("N", "N")}, {}, "N is not only its first size"),
        ({"x": ("N", 3), "m": (3, "N")}, {"y": ("N", 3)}, {}, "cannot take 'm' apart"),
        ({"x": ("BYTES", "N")}, {"y": ("N",)}, {}, "it is BYTES [N]"),
        ({"x": ("N", 3)}, {"y": ("N", 3)}, {"is_random": True}, "random operators"),
    ],
)
def test_a_model_whose_rows_are_not_known_to_be_apart_is_refused(inputs, outputs, part, says):
    with pytest.raises(BadStrategy) as caught:
        tiles_of(STRATEGY, carved(inputs, outputs, **part))
    assert says in caught.value.message
    assert caught.value.hint
