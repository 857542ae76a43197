"""One model in, slices and facts out. Pure: bytes in, bytes out, no files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace
from onnx import ModelProto

from din.domain.cuts import CutTable
from din.domain.estimates import capped, memory_mib
from din.domain.model import (
    Artifact,
    CarveAnswer,
    CarveRequest,
    Slice,
)
from din.domain.strategy import SliceSetting, check_strategy
from din.domain.tensor import TENSORS_MAX, TensorSpec
from din.errors import BadModel
from din.slicing.assignment import BACKEND_DEFAULT, assign
from din.slicing.cutting import splits_quantised
from din.slicing.elements import signature_of, spec_of
from din.slicing.emission import emit
from din.slicing.encoding import Coded, encode, exact_bytes, exact_reason
from din.slicing.identity import slice_id_of, stamp, strategy_hash_of
from din.slicing.operators import OperatorGraph, read_operators
from din.slicing.parts import Part, cut_facts, divide
from din.slicing.shapes import Shapes, infer
from din.slicing.sizes import Sizes, sizes_of
from din.slicing.source import override_shapes, read_model, settle_inputs
from din.slicing.table import cut_table


@dataclass(frozen=True)
class Sliced:
    """The answer, and the bytes of each slice by their SHA256."""

    answer: CarveAnswer
    files: dict[str, bytes]


@dataclass(frozen=True)
class Analysed:
    """A model ready to be cut, however often."""

    model: ModelProto
    graph: OperatorGraph
    shapes: Shapes
    sizes: Sizes
    source_sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    data: bytes
    slice_id: str
    artifact: Artifact


def analyse(
    data: bytes, input_shapes: dict[str, tuple[int | str, ...]], *, is_served: bool = True
) -> Analysed:
    """Read a model and find its operators, shapes and sizes. Raises BadModel, BadStrategy.

    What nobody shall serve may take and give sequences, maps and optionals, and has no signature.
    """
    model = read_model(data)
    warnings: list[str] = []
    taken = settle_inputs(model)
    if taken:
        warnings.append(f"{taken} weights were graph inputs as well; they are fixed weights now")
    override_shapes(model, input_shapes)
    graph = read_operators(model)
    if is_served:
        _check_signature(graph)
    shapes = infer(model, graph)
    doubled = len(model.graph.output) - len(graph.outputs)
    if doubled:
        warnings.append(f"{doubled} outputs are listed more than once; each is answered once")
    dead = sum(not each.is_live for each in graph.operators)
    if dead:
        warnings.append(f"{dead} operators lead to no output; they are left out")
    return Analysed(
        model=model,
        graph=graph,
        shapes=shapes,
        sizes=sizes_of(model, graph, shapes),
        source_sha256=hashlib.sha256(data).hexdigest(),
        inputs=signature_of(graph.inputs, shapes.types, "input") if is_served else (),
        outputs=signature_of(graph.outputs, shapes.types, "output") if is_served else (),
        warnings=(*warnings, *shapes.warnings),
    )


def table_of(data: bytes, input_shapes: dict[str, tuple[int | str, ...]]) -> CutTable:
    """What cuts of a model are chosen from. Raises BadModel, BadStrategy, TooLarge."""
    try:
        found = analyse(data, input_shapes)
    except UnicodeError as error:
        raise _not_text(error) from None
    return cut_table(found.graph, found.shapes, found.sizes, found.source_sha256)


def slice_model(data: bytes, request: CarveRequest, din_version: str) -> Sliced:
    """Cut a model as the request says. Raises BadModel, BadStrategy, TooLarge."""
    try:
        check_strategy(request.strategy)
        found = analyse(data, request.input_shapes)
        assigned = assign(found.graph, found.sizes, request)
        count = len(assigned.settings)
        parts, edges = divide(found.graph, found.shapes, assigned.slice_of, count)
        opset = _opset(found.model)
        coded = encode(
            found.model, found.graph, found.shapes, parts, edges, request.encodings, opset
        )
        facts = {
            "parent_sha256": found.source_sha256,
            "slice.count": str(count),
            "strategy_hash": strategy_hash_of(request),
            "din_version": din_version,
        }
        files = tuple(_file_of(found, coded, part, facts) for part in coded.parts)
        slices = tuple(map(partial(_slice, found, coded), coded.parts, files, assigned.settings))
        answer = _answer(found, slices, coded)
        return Sliced(answer, {each.artifact.sha256: each.data for each in files})
    except UnicodeError as error:
        raise _not_text(error) from None


def _not_text(error: UnicodeError) -> BadModel:
    return BadModel(
        f"a name or text in the graph is not UTF-8 ({error})",
        hint="the file is damaged, or its exporter wrote raw bytes into a name; export again",
    )


def _check_signature(graph: OperatorGraph) -> None:
    for side, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        if len(names) > TENSORS_MAX:
            raise BadModel(
                f"the model has {len(names)} {side}; the limit is {TENSORS_MAX}",
                hint="stack them into fewer tensors, or split the model",
            )


def _file_of(found: Analysed, coded: Coded, part: Part, facts: dict[str, str]) -> _File:
    model = emit(found.model, found.graph, coded.shapes, part)
    coded.write(model, part)
    slice_id = slice_id_of(model)
    own = {
        "slice.id": slice_id,
        "slice.index": str(part.index),
        "slice.inputs": msgspec.json.encode(part.inputs).decode(),
        "slice.outputs": msgspec.json.encode(part.outputs).decode(),
    }
    stamp(model, facts | own)
    data = model.SerializeToString(deterministic=True)
    return _File(data, slice_id, Artifact(hashlib.sha256(data).hexdigest(), len(data)))


def _slice(found: Analysed, coded: Coded, part: Part, file: _File, setting: SliceSetting) -> Slice:
    sizes, dynamic = found.sizes, list(part.dynamic)
    weights = sizes.weights({each.index for each in part.constants}, set(part.stored), dynamic)
    types = coded.shapes.types
    return Slice(
        index=part.index,
        slice_id=file.slice_id,
        name=setting.name or f"slice-{part.index}",
        artifacts=(file.artifact,),
        inputs=tuple(spec_of(name, types[name]) for name in part.inputs),
        outputs=tuple(spec_of(name, types[name]) for name in part.outputs),
        backend=setting.backend or BACKEND_DEFAULT,
        operators=len(dynamic),
        bytes_weights=capped(weights),
        memory_mib=memory_mib(weights, sizes.peak(dynamic)),
        flops=capped(sum(sizes.flops(each) for each in dynamic)),
        opset=_opset(found.model),
        is_random=any(each.is_random for each in dynamic),
        device_type=setting.device_type,
        labels=setting.labels,
        is_sensitive=setting.sensitive,
        nodes=setting.nodes,
        not_nodes=setting.not_nodes,
    )


def _answer(
    found: Analysed,
    slices: tuple[Slice, ...],
    coded: Coded,
) -> CarveAnswer:
    edges = coded.edges
    cuts = tuple(
        replace(cut, nbytes_exact=exact_bytes(coded, cut.tensors))
        for cut in cut_facts(coded.shapes, edges, len(slices))
    )
    used = {edge.tensor for edge in edges}
    crossing = [name for cut in cuts for name in cut.tensors]
    split = [name for name in crossing if splits_quantised(found.graph, name)]
    raw = dict.fromkeys(map(coded.exact_name, crossing))
    opset = _opset(found.model)
    reasons = {name: exact_reason(found.graph, found.shapes, name, opset) for name in raw}
    warnings = list(found.warnings)
    if split:
        warnings.append(
            f"cuts part quantised operators from their scales at {', '.join(split[:5])}: "
            "optimised kernels may round otherwise there; cut between QuantizeLinear and "
            "DequantizeLinear instead"
        )
    return CarveAnswer(
        source_sha256=found.source_sha256,
        inputs=found.inputs,
        outputs=found.outputs,
        slices=slices,
        edges=edges,
        cuts=cuts,
        operators=len(found.graph.dynamic),
        opset=opset,
        ir_version=found.model.ir_version,
        unused_inputs=tuple(name for name in found.graph.inputs if name not in used),
        exact_only={name: reason for name, reason in reasons.items() if reason},
        warnings=tuple(warnings),
    )


def _opset(model: ModelProto) -> int:
    """Version of the standard operator set, 1 when the model names none."""
    return max(
        (each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=1
    )
