"""One model in, slices and facts out. Pure: it sees files as memory, and packs of weights are
stored by whoever calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec.structs import replace
from onnx import ModelProto

from din.domain.cuts import CutTable
from din.domain.estimates import capped, memory_mib
from din.domain.model import (
    MODEL_FILE,
    Artifact,
    CarveAnswer,
    CarveRequest,
    Slice,
)
from din.domain.strategy import Rewrite, SliceSetting, check_strategy, default_name
from din.domain.tensor import TENSORS_MAX, TensorSpec
from din.errors import BadModel
from din.slicing.assignment import BACKEND_DEFAULT, assign
from din.slicing.cutting import splits_quantised
from din.slicing.elements import signature_of, spec_of
from din.slicing.emission import emit
from din.slicing.encoding import Coded, encode, exact_bytes, exact_reason
from din.slicing.functions import check_functions
from din.slicing.identity import slice_id_of, stamp, strategy_hash_of
from din.slicing.needs import needs_of
from din.slicing.operators import OperatorGraph, read_operators
from din.slicing.packs import Pack, PackWriter, Written, packs_of
from din.slicing.parts import Part, cut_facts, divide
from din.slicing.points import places_of
from din.slicing.rewrites import rewritten
from din.slicing.shapes import Shapes, infer
from din.slicing.sizes import Sizes, sizes_of
from din.slicing.skeleton import Skeleton, skeleton_of
from din.slicing.source import override_shapes, read_model, settle_inputs
from din.slicing.table import cut_table
from din.slicing.weights import Place, refer, references_in, settle_weights


@dataclass(frozen=True)
class Sliced:
    """The answer, and each slice's model by its SHA256; packs are stored already."""

    answer: CarveAnswer
    files: dict[str, bytes]


@dataclass(frozen=True)
class Analysed:
    """A model ready to be cut, however often."""

    model: ModelProto
    """Without large weights; those are at `places` of `files`."""
    places: tuple[Place, ...]
    files: Mapping[str, memoryview]
    graph: OperatorGraph
    shapes: Shapes
    sizes: Sizes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    data: bytes
    slice_id: str
    artifacts: tuple[Artifact, ...]


def analyse(
    files: Mapping[str, memoryview] | bytes,
    input_shapes: Mapping[str, tuple[int | str, ...]],
    *,
    is_served: bool = True,
    rewrite: Sequence[Rewrite] = (),
) -> Analysed:
    """Read a model and find its operators, shapes and sizes. `files`: the model's as MODEL_FILE,
    those beside it by their location; bytes are a model that needs none. Raises BadModel,
    BadStrategy, TooLarge.

    What nobody shall serve may take and give sequences, maps and optionals, and has no signature.
    """
    if isinstance(files, bytes):
        files = {MODEL_FILE: memoryview(files)}
    skeleton = skeleton_of(files[MODEL_FILE])
    return analyse_skeleton(skeleton, files, input_shapes, is_served=is_served, rewrite=rewrite)


def analyse_skeleton(
    skeleton: Skeleton,
    files: Mapping[str, memoryview],
    input_shapes: Mapping[str, tuple[int | str, ...]],
    *,
    is_served: bool = True,
    rewrite: Sequence[Rewrite] = (),
) -> Analysed:
    """As `analyse`, of a model whose skeleton was taken already."""
    contents = read_model(skeleton.data)
    model = contents.model
    check_functions(model)
    places = settle_weights(contents, skeleton.weights, files)
    warnings: list[str] = []
    taken = settle_inputs(model)
    if taken:
        warnings.append(f"{taken} weights were graph inputs as well; they are fixed weights now")
    override_shapes(model, input_shapes)
    warnings.extend(rewritten(model, rewrite))
    graph = read_operators(contents)
    if is_served:
        _check_signature(graph)
    shapes = infer(model, graph)
    promised = shapes.promised(graph.outputs)
    doubled = len(model.graph.output) - len(graph.outputs)
    if doubled:
        warnings.append(f"{doubled} outputs are listed more than once; each is answered once")
    dead = sum(not each.is_live for each in graph.operators)
    if dead:
        warnings.append(f"{dead} operators lead to no output; they are left out")
    return Analysed(
        model=model,
        places=places,
        files=files,
        graph=graph,
        shapes=shapes,
        sizes=sizes_of(model, graph, shapes),
        inputs=signature_of(graph.inputs, shapes.types, "input") if is_served else (),
        outputs=signature_of(graph.outputs, promised, "output") if is_served else (),
        warnings=(*warnings, *shapes.warnings),
    )


def table_of(
    files: Mapping[str, memoryview] | bytes,
    input_shapes: Mapping[str, tuple[int | str, ...]],
    source_sha256: str = "",
    ranges: Sequence[str] = (),
    rewrite: Sequence[Rewrite] = (),
) -> CutTable:
    """What cuts of a model are chosen from; `files` as for `analyse`. Raises BadModel, BadStrategy,
    TooLarge."""
    try:
        found = analyse(files, input_shapes, rewrite=rewrite)
        places = tuple(places_of(found.graph, each, "range") for each in ranges)
    except UnicodeError as error:
        raise _not_text(error) from None
    known = source_sha256 or _sha256_of(found.files[MODEL_FILE])
    table = cut_table(found.graph, found.shapes, found.sizes, known)
    return msgspec.structs.replace(table, ranges=places)


def slice_model(
    files: Mapping[str, memoryview], request: CarveRequest, din_version: str, write: PackWriter
) -> Sliced:
    """Cut a model as the request says; `files` as for `analyse`. Raises BadModel, BadStrategy,
    TooLarge, and what `write` raises."""
    try:
        check_strategy(request.strategy)
        found = analyse(files, request.input_shapes, rewrite=request.strategy.rewrite)
        assigned = assign(found.graph, found.sizes, request)
        count = len(assigned.settings)
        parts, edges = divide(found.graph, found.shapes, assigned.slice_of, count)
        opset = _opset(found.model)
        coded = encode(
            found.model, found.graph, found.shapes, parts, edges, request.encodings, opset
        )
        source_sha256 = request.source_sha256 or _sha256_of(files[MODEL_FILE])
        facts = {
            "parent_sha256": source_sha256,
            "slice.count": str(count),
            "strategy_hash": strategy_hash_of(request),
            "din_version": din_version,
        }
        models = [_emitted(found, coded, part) for part in coded.parts]
        stored = _store_packs(found.places, models, files, request, write)
        made = tuple(
            _file_of(found.places, part, model, stored, facts)
            for part, model in zip(coded.parts, models, strict=True)
        )
        slices = tuple(map(partial(_slice, found, coded), coded.parts, made, assigned.settings))
        answer = _answer(found, source_sha256, slices, coded)
        assignment = tuple(assigned.slice_of[each.index] for each in found.graph.dynamic)
        answer = msgspec.structs.replace(answer, assignment=assignment)
        return Sliced(answer, {each.artifacts[0].sha256: each.data for each in made})
    except UnicodeError as error:
        raise _not_text(error) from None


def _sha256_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _not_text(error: UnicodeError) -> BadModel:
    return BadModel(
        f"a name or text in the graph is not UTF-8 ({error})",
        hint="the file is damaged, or its exporter wrote raw bytes into a name; export again",
    )


def _store_packs(
    places: Sequence[Place],
    models: Sequence[ModelProto],
    files: Mapping[str, memoryview],
    request: CarveRequest,
    write: PackWriter,
) -> list[tuple[Pack, Written]]:
    uses = [[places[number] for number, _ in references_in(each.graph)] for each in models]
    may_serve = {name: len(files[name]) for name in request.as_is}
    return [(pack, write(pack)) for pack in packs_of(uses, may_serve)]


def _check_signature(graph: OperatorGraph) -> None:
    for side, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        if len(names) > TENSORS_MAX:
            raise BadModel(
                f"the model has {len(names)} {side}; the limit is {TENSORS_MAX}",
                hint="stack them into fewer tensors, or split the model",
            )


def _emitted(found: Analysed, coded: Coded, part: Part) -> ModelProto:
    model = emit(found.model, found.graph, coded.shapes, part)
    coded.write(model, part)
    return model


def _file_of(
    places: Sequence[Place],
    part: Part,
    model: ModelProto,
    stored: Iterable[tuple[Pack, Written]],
    facts: dict[str, str],
) -> _File:
    """The slice's model, whose large weights refer into its packs."""
    own = [(pack, written) for pack, written in stored if part.index in pack.users]
    held = {place: (pack, written) for pack, written in own for place in pack.offsets}
    weights = [(places[number], tensor) for number, tensor in references_in(model.graph)]
    for place, tensor in weights:
        refer(tensor, {"sha256": held[place][1].digests[place].hex()})
    slice_id = slice_id_of(model)
    for place, tensor in weights:
        pack, written = held[place]
        offset, nbytes = str(pack.offsets[place]), str(place.nbytes)
        refer(tensor, {"location": written.sha256, "offset": offset, "length": nbytes})
    facts = facts | {
        "slice.id": slice_id,
        "slice.index": str(part.index),
        "slice.inputs": msgspec.json.encode(part.inputs).decode(),
        "slice.outputs": msgspec.json.encode(part.outputs).decode(),
    }
    stamp(model, facts)
    data = model.SerializeToString(deterministic=True)
    model_file = Artifact(_sha256_of(data), len(data))
    packs = [Artifact(written.sha256, pack.nbytes, "weights") for pack, written in own]
    return _File(data, slice_id, (model_file, *packs))


def _slice(found: Analysed, coded: Coded, part: Part, file: _File, setting: SliceSetting) -> Slice:
    sizes, dynamic = found.sizes, list(part.dynamic)
    weights = sizes.weights({each.index for each in part.constants}, set(part.stored), dynamic)
    types = coded.shapes.types
    return Slice(
        index=part.index,
        slice_id=file.slice_id,
        name=setting.name or default_name(part.index),
        artifacts=file.artifacts,
        inputs=tuple(spec_of(name, types[name]) for name in part.inputs),
        outputs=tuple(spec_of(name, types[name]) for name in part.outputs),
        backend=setting.backend or BACKEND_DEFAULT,
        operators=len(dynamic),
        bytes_weights=capped(weights),
        memory_mib=memory_mib(weights, sizes.peak(dynamic)),
        flops=capped(sum(sizes.flops(each) for each in dynamic)),
        opset=_opset(found.model),
        needs=needs_of(found.model, part.operators, _opset(found.model), coded.added(part)),
        is_random=any(each.is_random for each in dynamic),
        device_type=setting.device_type,
        labels=setting.labels,
        is_sensitive=setting.sensitive,
        nodes=setting.nodes,
        not_nodes=setting.not_nodes,
    )


def _answer(
    found: Analysed,
    source_sha256: str,
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
        source_sha256=source_sha256,
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
