"""Encodings and compression at the cuts: what the nodes that are appended cost against numpy, what
is spared of the bytes, how far off the answers of a model are left, and what zstd costs and spares
in that model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from time import process_time_ns
from typing import Any, Final

from din.backends.contract import NUMPY_TYPES
from din.bench.carved import carved
from din.bench.examples import feeds_of, shapes_of
from din.bench.models import SESSION, fetched
from din.bench.row import Effort, Row, figure, median
from din.domain.encoding import Encoding, EncodingKind
from din.domain.model import CarveRequest
from din.domain.probe import TensorRange
from din.domain.strategy import Strategy
from din.domain.tensor import ZSTD, TensorMeta, TensorSpec
from din.placement.precision import CODING_MS_PER_MIB, Refused, encoding_of
from din.slicing.slicer import Sliced
from din.worker.compression import Compressor

MODEL, POINT = "centerface", "404"
CHANNELS, SIDE = 64, 128
MIB: Final = CHANNELS * SIDE * SIDE * 4 / 2**20
OPSET: Final = 17
SEED: Final = 1
IMAGE_SHAPE: Final = (1, 3, 320, 320)
LEFT_MAX: Final[dict[EncodingKind, float]] = {"uint8": 0.25, "fp16": 0.5}


def codec(effort: Effort) -> Iterator[Row]:
    """Each kind of encoding, by itself and in a model."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    count = max(2, effort.repeats * effort.rounds // 150)
    for kind in LEFT_MAX:
        yield _cost(kind, count)
    yield from _in_a_model(count)


def _cost(kind: EncodingKind, count: int) -> Row:
    import numpy as np

    spread = np.logspace(-1, 1, CHANNELS, dtype=np.float32).reshape(1, -1, 1, 1)
    draw = np.random.default_rng(SEED)
    plain = draw.normal(0, 1, (1, CHANNELS, SIDE, SIDE)).astype(np.float32) * spread
    encoding = _encoding(TensorSpec("t", "FP32", plain.shape), kind, plain)
    works = [*_by_nodes(encoding, plain), *_by_numpy(encoding, plain)]
    spent: list[list[float]] = [[] for _ in works]
    order = Random(SEED)
    for number in range(count + 1):
        for which in order.sample(range(len(works)), len(works)):
            started = process_time_ns()
            works[which]()
            if number:  # the first round warms
                spent[which].append((process_time_ns() - started) / 1e6 / MIB)
    made, read, numpy_made, numpy_read = map(median, spent)
    how = (
        f"encoding {made:.2f} and decoding {read:.2f}; numpy {numpy_made:.2f} and "
        f"{numpy_read:.2f}, {(numpy_made + numpy_read) / (made + read):.1f} times that; {MIB:.0f} "
        f"MiB of FP32, {CHANNELS} channels, median CPU time of {count} runs, interleaved, 1 thread"
    )
    name = f"{kind}, encoding and decoding"
    return figure(name, made + read, "ms a MiB", how, at_most=CODING_MS_PER_MIB)


def _encoding(spec: TensorSpec, kind: EncodingKind, value: Any) -> Encoding:
    """As a calibration on this very value would choose it."""
    rows = value.swapaxes(0, 1).reshape(value.shape[1], -1)
    seen = TensorRange(
        name=spec.name,
        dtype=spec.dtype,
        shape=value.shape,
        minimum=float(value.min()),
        maximum=float(value.max()),
        channel_minima=tuple(map(float, rows.min(1))),
        channel_maxima=tuple(map(float, rows.max(1))),
    )
    found = encoding_of(spec, seen, kind)
    assert not isinstance(found, Refused), "the value is finite and small"
    return found


def _by_nodes(encoding: Encoding, plain: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from onnx import TensorProto, helper

    from din.bench.composed import engine
    from din.slicing.coders import Coder

    coder = Coder("t", "t.made", encoding, False, OPSET, plain.ndim)
    kinds = {"t": TensorProto.FLOAT, "t.made": TensorProto.UINT8}
    if encoding.kind == "fp16":
        kinds["t.made"] = TensorProto.FLOAT16

    def session(nodes: Any, source: str, target: str) -> Any:
        ends = [helper.make_tensor_value_info(each, kinds[each], plain.shape)
                for each in (source, target)]  # fmt: skip
        graph = helper.make_graph(nodes, "codec", ends[:1], ends[1:], coder.stored())
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return engine(model.SerializeToString())

    encoder = session(coder.encoders(), "t", "t.made")
    decoder = session(coder.decoders(), "t.made", "t")
    (made,) = encoder.run(None, {"t": plain})
    return (
        lambda: encoder.run(None, {"t": plain}),
        lambda: decoder.run(None, {"t.made": made}),
    )


def _by_numpy(encoding: Encoding, plain: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import numpy as np

    if encoding.kind == "fp16":
        half = plain.astype(np.float16)
        return lambda: plain.astype(np.float16), lambda: half.astype(np.float32)
    scale = np.array(encoding.scale, np.float32).reshape(1, -1, 1, 1)
    zero = np.array(encoding.zero_point, np.float32).reshape(1, -1, 1, 1)

    def encode() -> Any:
        return np.clip(np.rint(plain / scale) + zero, 0, 255).astype(np.uint8)

    codes = encode()
    return encode, lambda: (codes.astype(np.float32) - zero) * scale


def _in_a_model(count: int) -> Iterator[Row]:
    import numpy as np

    data, feeds = fetched(MODEL).read_bytes(), feeds_of(MODEL)
    exact = _run(_cut(data, {}), feeds)
    specs = {spec.name: spec for spec in _cut(data, {}).answer.slices[0].outputs}
    for kind, left_max in LEFT_MAX.items():
        encodings = {name: _encoding(spec, kind, exact[name]) for name, spec in specs.items()}
        sliced = _cut(data, encodings)
        found = _run(sliced, feeds)
        outputs = [spec.name for spec in sliced.answer.outputs]
        losses = [np.abs(found[n] - exact[n]).max() / np.abs(exact[n]).max() for n in outputs]
        crossing = [spec.name for spec in sliced.answer.slices[1].inputs]
        left = sum(found[n].nbytes for n in crossing) / sum(exact[n].nbytes for n in specs)
        how = (
            f"CenterFace cut at {POINT}: outputs are up to {max(losses):.2%} of their largest "
            "magnitude off, calibrated on the very input"
        )
        yield figure(f"{kind}, bytes that cross", left, "of FP32", how, at_most=left_max)
        yield from _compressed(f"zstd behind {kind}", sliced, crossing, count)
    yield from _compressed("zstd", _cut(data, {}), list(specs), count)


def _compressed(name: str, sliced: Sliced, crossing: list[str], count: int) -> Iterator[Row]:
    """What a worker's compressor makes of what crosses; no goal is set for it."""
    import numpy as np

    (tensor,) = feeds_of(MODEL)
    image = np.random.default_rng(SEED).uniform(0, 255, IMAGE_SHAPE).astype(np.float32)
    found = _run(sliced, {tensor: image})
    values = {each: found[each] for each in crossing}
    nbytes = sum(value.nbytes for value in values.values())
    compressor = Compressor()
    frames = {each: compressor.compress(value) for each, value in values.items()}
    spent: list[list[float]] = [[], []]
    for _ in range(count):
        started = process_time_ns()
        for value in values.values():
            compressor.compress(value)
        between = process_time_ns()
        for each, frame in frames.items():
            if frame is not None:
                _decompressed(compressor, each, values[each], frame)
        for figures, taken in zip(spent, (between - started, process_time_ns() - between),
                                  strict=True):  # fmt: skip
            figures.append(taken / 1e6 / (nbytes / 2**20))
    made, read = map(median, spent)
    left = sum(
        values[each].nbytes if frame is None else len(frame) for each, frame in frames.items()
    )
    what = f"{nbytes / 2**20:.2f} MiB of CenterFace cut at {POINT}, from noise of 320 x 320 pixels"
    how = (
        f"compressing {made:.2f} and decompressing {read:.2f}; {what}, median CPU time of {count} "
        "runs, 1 thread"
    )
    yield figure(f"{name}, compressing and decompressing", made + read, "ms a MiB", how)
    yield figure(f"{name}, bytes that are left", left / nbytes, "of what came", what)


def _decompressed(compressor: Compressor, name: str, value: Any, frame: bytes | bytearray) -> None:
    word = next(word for word, dtype in NUMPY_TYPES.items() if dtype == value.dtype)
    meta = TensorMeta(name, word, value.shape, len(frame), ZSTD)
    compressor.decompress(memoryview(frame), meta)


def _cut(data: bytes, encodings: dict[str, Encoding]) -> Sliced:
    request = CarveRequest(
        model_path="",
        output_path="",
        strategy=Strategy(partition_points=(POINT,)),
        input_shapes=shapes_of(MODEL),
        encodings=encodings,
    )
    return carved(data, request)


def _run(sliced: Sliced, feeds: dict[str, Any]) -> dict[str, Any]:
    """Every value that slices take or give."""
    from din.backends.onnxruntime_backend import load

    known = dict(feeds)
    for part in sliced.answer.slices:
        model, *weights = (each.sha256 for each in part.artifacts)
        packs = {each: memoryview(sliced.files[each]) for each in weights}
        session = load(sliced.files[model], SESSION, packs)
        inputs = {spec.name: known[spec.name] for spec in part.inputs}
        made = session.run(inputs, tuple(spec.name for spec in part.outputs), {})
        known |= {name: array.copy() for name, array in made.items()}
    return known
