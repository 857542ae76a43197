"""What the gateway learns of loaded slices."""

from __future__ import annotations

from msgspec.structs import replace

from din.domain.estimates import needed_mib
from din.domain.model import ModelManifest, Slice
from din.domain.node import NodeId, NodeProfile
from din.domain.tensor import TensorSpec
from din.gateway.deployment.measured import MEASURED_MAX, MemoryBook

FIXED = TensorSpec("x", "FP32", (1, 3, 512, 512))
FREE = TensorSpec("x", "FP32", ("batch", 4))
MANIFEST = ModelManifest(model_id="m", version="1", source_sha256="", inputs=(), outputs=())


def a_node(
    number: int, device_type: str = "x86_64-cpu-ort1.32", engine: str = "1.32"
) -> NodeProfile:
    return NodeProfile(
        node_id=NodeId(f"{number:016x}"), session=1, name=f"n{number}", device_type=device_type,
        cpu_model="", cpu_isa=(), cpu_cores=4, memory_mib=4096, versions={"onnxruntime": engine},
    )  # fmt: skip


def a_slice(spec: TensorSpec = FIXED, number: int = 0) -> Slice:
    return Slice(
        index=0, slice_id=f"{number:064x}", name="s", inputs=(spec,), outputs=(), memory_mib=400
    )


def test_until_it_is_measured_the_estimate_counts() -> None:
    assert MemoryBook(lambda: [a_node(1)]).needed_mib(a_slice(), MANIFEST) == 400


def test_a_measured_slice_is_planned_with_what_it_took_and_its_requests() -> None:
    book = MemoryBook(lambda: [a_node(1)])
    assert book.learn(a_slice(), MANIFEST, a_node(1).node_id, 250) == 250
    assert book.needed_mib(a_slice(), MANIFEST) == 250 + 2 * 3


def test_a_class_that_has_not_loaded_it_keeps_the_estimate_in_force() -> None:
    nodes = [a_node(1), a_node(2, "aarch64-cpu-ort1.32")]
    book = MemoryBook(lambda: nodes)
    book.learn(a_slice(), MANIFEST, nodes[0].node_id, 250)
    assert book.needed_mib(a_slice(), MANIFEST) == 400
    book.learn(a_slice(), MANIFEST, nodes[1].node_id, 300)
    assert book.needed_mib(a_slice(), MANIFEST) == 306


def test_another_engine_or_other_options_are_measured_for_themselves() -> None:
    nodes = [a_node(1)]
    book = MemoryBook(lambda: nodes)
    book.learn(a_slice(), MANIFEST, nodes[0].node_id, 250)
    assert book.needed_mib(a_slice(), replace(MANIFEST, backend_options={"threads": "4"})) == 400
    nodes[0] = a_node(1, engine="1.40")
    assert book.needed_mib(a_slice(), MANIFEST) == 400


def test_free_sizes_are_never_planned_below_the_estimate() -> None:
    book = MemoryBook(lambda: [a_node(1)])
    book.learn(a_slice(FREE), MANIFEST, a_node(1).node_id, 50)
    assert book.needed_mib(a_slice(FREE), MANIFEST) == 400
    book.learn(a_slice(FREE), MANIFEST, a_node(1).node_id, 900)
    assert book.needed_mib(a_slice(FREE), MANIFEST) == 900


def test_a_node_cannot_claim_more_than_it_has_or_less_than_nothing() -> None:
    book = MemoryBook(lambda: [a_node(1)])
    assert book.learn(a_slice(), MANIFEST, a_node(1).node_id, 10**15) == 4096
    assert book.learn(a_slice(), MANIFEST, a_node(1).node_id, -5) == 1


def test_what_is_learned_is_bounded() -> None:
    book = MemoryBook(lambda: [a_node(1)])
    for number in range(MEASURED_MAX + 1):
        book.learn(a_slice(number=number), MANIFEST, a_node(1).node_id, 100)
    assert len(book._measured) == MEASURED_MAX


def test_where_what_crosses_is_compressed_its_copies_are_needed_beside_what_was_measured() -> None:
    mib = 1024 * 1024
    part = Slice(
        index=0,
        slice_id="a" * 64,
        name="part",
        inputs=(TensorSpec("x", "UINT8", (2 * mib,)),),
        outputs=(TensorSpec("y", "UINT8", (4 * mib,)), TensorSpec("z", "UINT8", (8, mib))),
        memory_mib=50,
    )
    packed = replace(part, compression="zstd")
    assert needed_mib(part, 60) == 60 + 2 * (2 + 4 + 8)
    assert needed_mib(packed, 60) == needed_mib(part, 60) + 3 + 2 + 4 + 8 + 8
    assert needed_mib(packed, None) == 50
    free = replace(packed, inputs=(TensorSpec("x", "UINT8", ("n",)),))
    assert needed_mib(free, 40) == 50
