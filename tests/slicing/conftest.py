"""A bench to cut models on and to compare the sliced run with the whole one."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, checker, helper

from din.bench.backend_cases import Case, cases, is_cuttable
from din.bench.carved import carved
from din.domain.model import GATEWAY, CarveRequest
from din.domain.strategy import Strategy
from din.slicing.slicer import Sliced

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime as ort

ort.set_default_logger_severity(4)
Feeds = dict[str, np.ndarray[Any, Any]]

_path_of = runpy.run_path(str(Path(__file__).parent.parent / "models.py"))["path_of"]


STRATEGY_KEYS = frozenset(Strategy.__struct_fields__) - {"memory_mib_max"}


class Bench:
    """Cuts, runs and compares."""

    def cut(
        self,
        model: ModelProto | bytes,
        *points: str,
        beside: dict[str, bytes] | None = None,
        **fields: Any,
    ) -> Sliced:
        """The files of what is answered hold models and packs. `beside`: files with weights."""
        data = model if isinstance(model, bytes) else model.SerializeToString()
        strategy = {key: fields.pop(key) for key in STRATEGY_KEYS & set(fields)}
        request = CarveRequest(
            model_path="m.onnx",
            output_path="out",
            strategy=Strategy(partition_points=points, **strategy),
            **fields,
        )
        return carved(data, request, beside or {})

    def run_whole(
        self, data: bytes, feeds: Feeds, is_optimised: bool, packs: dict[str, bytes] | None = None
    ) -> Feeds:
        session = self._session(data, is_optimised, packs or {})
        names = [each.name for each in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))

    def run_sliced(self, sliced: Sliced, feeds: Feeds, is_optimised: bool) -> Feeds:
        """Feed every slice from its edges alone, as agents do."""
        inboxes: dict[int, Feeds] = {each.index: {} for each in sliced.answer.slices}
        inboxes[GATEWAY] = {}
        self._send(sliced, GATEWAY, feeds, inboxes)
        waiting = list(sliced.answer.slices)
        while waiting:
            ready = [e for e in waiting if {i.name for i in e.inputs} == set(inboxes[e.index])]
            assert ready, "no slice can run"
            for part in ready:
                waiting.remove(part)
                data = sliced.files[part.artifacts[0].sha256]
                packs = {each.sha256: sliced.files[each.sha256] for each in part.artifacts[1:]}
                made = self.run_whole(data, inboxes[part.index], is_optimised, packs)
                assert list(made) == [each.name for each in part.outputs]
                self._send(sliced, part.index, made, inboxes)
        return inboxes[GATEWAY]

    def check(self, model: ModelProto | bytes, feeds: Feeds, *points: str, **fields: Any) -> Sliced:
        """Cut, then hold the sliced run against the run of the whole, both ways of optimising."""
        sliced = self.cut(model, *points, **fields)
        whole = model if isinstance(model, bytes) else model.SerializeToString()
        packs: dict[str, bytes] = {}
        if fields.get("input_shapes"):
            one = self.cut(model, input_shapes=fields["input_shapes"])
            whole = one.files[one.answer.slices[0].artifacts[0].sha256]
            packs = one.files
        used = {name: feeds[name] for name in feeds}
        expected = self.run_whole(whole, used, is_optimised=False, packs=packs)
        found = self.run_sliced(sliced, feeds, is_optimised=False)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert found[name].tobytes() == value.tobytes(), f"{name} differs bitwise"
        optimised = self.run_whole(whole, used, is_optimised=True, packs=packs)
        for name, value in self.run_sliced(sliced, feeds, is_optimised=True).items():
            # Values near zero in a tensor of hundreds carry the rounding of the large ones.
            scale = max(1.0, float(np.abs(optimised[name].astype(np.float64)).max(initial=0)))
            np.testing.assert_allclose(value, optimised[name], rtol=1e-4, atol=1e-6 * scale)
        return sliced

    def _session(
        self, data: bytes, is_optimised: bool, packs: dict[str, bytes]
    ) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = (
            level.ORT_ENABLE_ALL if is_optimised else level.ORT_DISABLE_ALL
        )
        if packs:
            buffers = list(packs.values())
            options.add_external_initializers_from_files_in_memory(
                list(packs), buffers, [len(each) for each in buffers]
            )
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def _send(
        self, sliced: Sliced, producer: int, values: Feeds, inboxes: dict[int, Feeds]
    ) -> None:
        for edge in sliced.answer.edges:
            if edge.producer == producer:
                for consumer in edge.consumers:
                    inboxes[consumer][edge.tensor] = values[edge.tensor]


class PlainFailures:
    """The cases that plain ONNX Runtime fails: those and no others may fail here."""

    HOW = "write it anew: python -m din.bench.backend_cases > tests/slicing/plain_failures.txt"

    def __init__(self) -> None:
        lines = (Path(__file__).parent / "plain_failures.txt").read_text().splitlines()
        self.versions = lines[0].removeprefix("# ")
        self.names = {line.split()[0] for line in lines[1:]}

    def check(self, failed: dict[str, str], among: set[str] | None = None) -> None:
        """`failed` says why; `among` are the cases that were tried, when these are not all."""
        expected = self.names if among is None else self.names & among
        worse = {name: reason for name, reason in failed.items() if name not in expected}
        better = expected - set(failed)
        assert not worse, f"{worse} fail and pass in plain ONNX Runtime"
        assert not better, f"{better} pass now; {self.HOW}"


@pytest.fixture(scope="session")
def plain_failures() -> PlainFailures:
    return PlainFailures()


@pytest.fixture(scope="module")
def backend_cases() -> list[Case]:
    return cases()


@pytest.fixture(scope="module")
def cuttable_cases(backend_cases: list[Case]) -> list[Case]:
    return [each for each in backend_cases if is_cuttable(each)]


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="session")
def fetched() -> Callable[[str], bytes]:
    return lambda name: _path_of(name).read_bytes()


def _value(spec: str | ValueInfoProto) -> ValueInfoProto:
    """`x`, or `x:INT64`, or `x:FLOAT:2,N`."""
    if not isinstance(spec, str):
        return spec
    name, *rest = spec.split(":")
    kind = TensorProto.DataType.Value(rest[0]) if rest else TensorProto.FLOAT
    shape: list[int | str] = [2, 3]
    if len(rest) > 1:
        shape = [
            int(each) if each.lstrip("-").isdigit() else each for each in rest[1].split(",") if each
        ]
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture(scope="session")
def build() -> Callable[..., ModelProto]:
    """Makes a checked model: nodes, inputs, outputs as `name:TYPE:dims`, stored arrays."""

    def make(
        nodes: list[NodeProto],
        inputs: list[Any],
        outputs: list[Any],
        stored: dict[str, Any] | None = None,
        is_checked: bool = True,
        **fields: Any,
    ) -> ModelProto:
        from onnx import numpy_helper

        tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (stored or {}).items()]
        graph: GraphProto = helper.make_graph(
            nodes, "made", [_value(e) for e in inputs], [_value(e) for e in outputs], tensors
        )
        fields.setdefault("opset_imports", [helper.make_opsetid("", 17)])
        model = helper.make_model(graph, ir_version=8, **fields)
        if is_checked:
            checker.check_model(model)
        return model

    return make
