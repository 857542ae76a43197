"""From what the carver found to what is deployed: adapters join as slices of their own.

`before` takes what the caller sends (a photo) and feeds every slice that reads a model input;
`after` reads every model output and gives what the caller gets. Both are placed, loaded and fed
like any slice; the raw edges of /v2 leave them out. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from din.adapters.catalogue import Specs, after_specs, before_specs, memory_mib
from din.backends.options import check_options_of
from din.domain.estimates import compression_mib
from din.domain.model import (
    CONTEXT_TENSOR,
    GATEWAY,
    AdapterSpec,
    CarveAnswer,
    Edge,
    Partition,
    Slice,
    SliceKind,
)
from din.domain.strategy import Compression
from din.domain.tensor import TensorSpec
from din.errors import BadStrategy


def build_partition(
    carved: CarveAnswer, before: AdapterSpec | None, after: AdapterSpec | None
) -> Partition:
    """Model slices plus adapters, with raw and adapted edges. Raises UsageError for adapters that
    do not fit the model's signature."""
    slices = list(carved.slices)
    if before is None and after is None:
        return Partition(slices=tuple(slices), edges=carved.edges)
    first = before_specs(before, carved.inputs) if before is not None else None
    last = after_specs(after, carved.outputs) if after is not None else None
    first_index = len(slices) if first is not None else None
    if before is not None and first is not None:
        slices.append(_adapter_slice(len(slices), "before", before, first))
    last_index = len(slices) if last is not None else None
    if after is not None and last is not None:
        slices.append(_adapter_slice(len(slices), "after", after, last))
    edges = _adapted_edges(carved.edges, first, first_index, last, last_index)
    return Partition(slices=tuple(slices), edges=carved.edges, adapted_edges=edges)


def marked_private(partition: Partition, private: str) -> Partition:
    """With `first-last`, the parts from which inputs or answers could be read stay on trusted
    nodes: the first and the last slice. An adapter sees the same as the slices beside it, so it is
    sensitive when one of them is."""
    sensitive = {part.index for part in partition.slices if part.is_sensitive}
    if private == "first-last":
        sensitive.add(0)
        models = (part.index for part in partition.slices if part.kind == "model")
        sensitive.add(max(models, default=0))
    kinds = {part.index: part.kind for part in partition.slices}
    marked = set(sensitive)
    for edge in partition.adapted_edges:
        ends = (edge.producer, *edge.consumers)
        if sensitive.intersection(ends):
            marked.update(each for each in ends if kinds.get(each, "model") != "model")
    return msgspec.structs.replace(
        partition,
        slices=tuple(
            msgspec.structs.replace(part, is_sensitive=True) if part.index in marked else part
            for part in partition.slices
        ),
    )


def marked_compressed(partition: Partition, compression: Compression) -> Partition:
    """What crosses between slices, adapters among them, is compressed; one slice alone is left."""
    if compression == "none" or len(partition.slices) == 1:
        return partition
    return msgspec.structs.replace(
        partition,
        slices=tuple(
            msgspec.structs.replace(
                part,
                compression=compression,
                memory_mib=part.memory_mib + compression_mib(part),
            )
            for part in partition.slices
        ),
    )


def adapted_signature(
    partition: Partition, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """What /infer takes and gives: the adapters' outer sides, else the model's own."""
    by_kind = {part.kind: part for part in partition.slices}
    taken = by_kind["before"].inputs if "before" in by_kind else inputs
    given = by_kind["after"].outputs if "after" in by_kind else outputs
    return taken, given


def _adapter_slice(index: int, kind: SliceKind, spec: AdapterSpec, specs: Specs) -> Slice:
    inputs, outputs = specs
    content = msgspec.json.encode((spec, inputs, outputs), order="sorted")
    return Slice(
        index=index,
        slice_id=hashlib.sha256(content).hexdigest(),
        name=kind,
        kind=kind,
        inputs=inputs,
        outputs=outputs,
        backend="adapter",
        adapter=spec,
        memory_mib=memory_mib(spec),
    )


def _adapted_edges(
    raw: tuple[Edge, ...],
    first: Specs | None,
    first_index: int | None,
    last: Specs | None,
    last_index: int | None,
) -> tuple[Edge, ...]:
    edges: list[Edge] = []
    made = {spec.name for spec in first[1]} if first is not None else set[str]()
    for edge in raw:
        producer, consumers = edge.producer, edge.consumers
        if producer == GATEWAY and edge.tensor in made and first_index is not None:
            producer = first_index
        if GATEWAY in consumers and last_index is not None:
            consumers = (*(each for each in consumers if each != GATEWAY), last_index)
        edges.append(Edge(edge.tensor, producer, consumers))
    if first is not None and first_index is not None:
        edges.extend(Edge(spec.name, GATEWAY, (first_index,)) for spec in first[0])
    if last is not None and last_index is not None:
        edges.extend(Edge(spec.name, last_index, (GATEWAY,)) for spec in last[1])
        _join_context(edges, last, last_index, made, first_index)
    return tuple(edges)


def _join_context(
    edges: list[Edge],
    last: Specs,
    last_index: int,
    made: set[str],
    first_index: int | None,
) -> None:
    if not any(spec.name == CONTEXT_TENSOR for spec in last[0]):
        return
    if CONTEXT_TENSOR not in made or first_index is None:
        raise BadStrategy(
            "the `after` adapter needs the context of a `before` adapter and there is none",
            hint='add for example "before": {"name": "image"} to the configuration',
        )
    edges.append(Edge(CONTEXT_TENSOR, first_index, (last_index,)))


def check_options(options: Mapping[str, str], carved: CarveAnswer) -> None:
    """Whether the backends of the slices know these options. Raises UsageError."""
    check_options_of({part.backend for part in carved.slices}, options)
