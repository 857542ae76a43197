"""Which parts see what nobody else may see."""

from __future__ import annotations

import pytest
from gateway_fakes import part_of
from msgspec.structs import replace

from din.domain.estimates import compression_mib
from din.domain.model import GATEWAY, Edge, Partition
from din.gateway.registration.partition import marked_compressed, marked_private

RAW = (Edge("x", GATEWAY, (0,)), Edge("a", 0, (1,)), Edge("b", 1, (2,)), Edge("y", 2, (GATEWAY,)))
ADAPTED = (
    Edge("photo", GATEWAY, (3,)),
    Edge("x", 3, (0,)),
    Edge("a", 0, (1,)),
    Edge("b", 1, (2,)),
    Edge("y", 2, (4,)),
    Edge("din.context", 3, (4,)),
    Edge("boxes", 4, (GATEWAY,)),
)


@pytest.mark.parametrize(
    ("sensitive", "private", "found"),
    [
        ((), "", ()),
        ((), "first-last", (0, 2, 3, 4)),
        ((0,), "", (0, 3)),
        ((1,), "", (1,)),
        ((2,), "", (2, 4)),
    ],
)
def test_an_adapter_is_as_sensitive_as_the_slices_beside_it(sensitive, private, found):
    kinds = ("model", "model", "model", "before", "after")
    slices = tuple(
        replace(part_of(index, ADAPTED), kind=kind, is_sensitive=index in sensitive)
        for index, kind in enumerate(kinds)
    )
    marked = marked_private(Partition(slices=slices, edges=RAW, adapted_edges=ADAPTED), private)
    assert tuple(each.index for each in marked.slices if each.is_sensitive) == found


def test_every_slice_is_compressed_at_its_cuts_and_a_model_without_cuts_is_left_alone():
    slices = tuple(part_of(index, ADAPTED) for index in range(5))
    partition = Partition(slices=slices, edges=RAW, adapted_edges=ADAPTED)
    assert marked_compressed(partition, "none") is partition
    marked = marked_compressed(partition, "zstd")
    assert {each.compression for each in marked.slices} == {"zstd"}
    for plain, packed in zip(slices, marked.slices, strict=True):
        assert packed.memory_mib == plain.memory_mib + compression_mib(plain)
        assert packed.memory_mib > plain.memory_mib
    assert (marked.edges, marked.adapted_edges) == (RAW, ADAPTED)
    alone = replace(partition, slices=slices[:1])
    assert marked_compressed(alone, "zstd") is alone
