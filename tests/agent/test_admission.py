"""Who gets memory of a node, on figures that the test sets."""

from __future__ import annotations

import pytest
from agent_gateway import make_slice
from msgspec.structs import replace

from din.agent.admission import KEPT_MIB, LIMIT_SLACK_MIB, MEASURED_MAX, Admission
from din.agent.recipe import Allowance
from din.domain.deployment import Epoch
from din.domain.model import Artifact
from din.domain.tensor import TensorSpec
from din.errors import Unavailable
from din.system.headroom import Headroom
from din.wire.messages import Prepare

FACTOR = 4.0


class Node:
    """Memory as the machine tells it, and the orders for it."""

    def __init__(self, free_mib: int | None, offered_mib: int = 100_000) -> None:
        self.free_mib = free_mib
        self.admission = Admission(self._headroom, offered_mib, FACTOR)

    def _headroom(self) -> Headroom | None:
        return None if self.free_mib is None else Headroom(self.free_mib, "this machine")

    def load(self, number: int, mib: int, took_mib: int | None = None) -> None:
        order = an_order(number, mib)
        self.admission.claim((order.epoch, number), order)
        if took_mib is not None:
            self.admission.settle((order.epoch, number), order, took_mib)
            if self.free_mib is not None:
                self.free_mib -= took_mib


def an_order(
    number: int, mib: int, workers: int = 1, dims: tuple[int | str, ...] = (1,)
) -> Prepare:
    spec = TensorSpec("x", "FP32", dims)
    part = make_slice(0, Artifact("0" * 64, 0))
    part = replace(
        part, index=number, name=f"part-{number}", slice_id=f"{number:064x}", memory_mib=mib,
        inputs=(spec,), outputs=(spec,),
    )  # fmt: skip
    epoch = Epoch(1, 1)
    return Prepare(epoch, "face", part, (), (), workers, {}, "", {}, 1000)


def test_what_fits_is_taken_and_one_mib_more_is_refused() -> None:
    node = Node(500)
    node.load(0, 500 - KEPT_MIB)
    with pytest.raises(Unavailable):
        Node(500).load(0, 501 - KEPT_MIB)


def test_a_refusal_names_what_is_needed_free_and_held() -> None:
    node = Node(1000)
    node.load(0, 300, took_mib=310)
    with pytest.raises(Unavailable) as refused:
        node.load(1, 900)
    text = refused.value.message
    assert "'part-1' needs 900 MiB of memory (1 x 900, estimated)" in text
    assert "626 MiB are free by this machine and 64 are kept" in text
    assert "held by slices: face/part-0 (311 MiB)" in text
    assert refused.value.hint


def test_slices_that_load_at_once_do_not_count_on_the_same_memory() -> None:
    node = Node(1000)
    node.load(0, 500)
    with pytest.raises(Unavailable):
        node.load(1, 500)
    order = an_order(0, 500)
    node.admission.release((order.epoch, 0))
    node.load(1, 500)


def test_a_loaded_slice_is_counted_once_by_the_machine() -> None:
    node = Node(1000)
    node.load(0, 500, took_mib=400)
    node.load(1, 500)


def test_what_was_measured_corrects_the_estimate_for_the_next_time() -> None:
    node = Node(1000)
    node.load(0, 700, took_mib=100)
    node.admission.release((Epoch(1, 1), 0))
    node.free_mib = 200
    node.load(0, 700)
    node.admission.release((Epoch(1, 1), 0))
    node.free_mib = 150
    with pytest.raises(Unavailable, match="measured here"):
        node.load(0, 700)


def test_measuring_never_lowers_the_estimate_of_a_slice_of_free_sizes() -> None:
    node = Node(1000)
    order = an_order(0, 700, dims=("batch", 3))
    node.admission.settle((order.epoch, 0), order, 100)
    node.free_mib = 700
    with pytest.raises(Unavailable, match="needs 700 MiB"):
        node.admission.claim((order.epoch, 0), order)


def test_a_node_that_offers_less_than_the_machine_has_keeps_to_that() -> None:
    node = Node(10_000, offered_mib=400)
    node.load(0, 300, took_mib=300)
    with pytest.raises(Unavailable, match="99 MiB are free by what this node offers"):
        node.load(1, 200)


def test_where_the_machine_tells_nothing_the_offer_alone_counts() -> None:
    Node(None, offered_mib=400).load(0, 400)
    with pytest.raises(Unavailable):
        Node(None, offered_mib=400).load(0, 401)


def test_a_worker_may_take_a_multiple_of_its_need_or_all_when_the_factor_is_nought() -> None:
    order = an_order(0, 100)
    limit_mib = LIMIT_SLACK_MIB + 400
    assert Node(None).admission.allowance(order) == Allowance(limit_mib, limit_mib // 2, 0)
    assert Admission(lambda: None, 1000, 0.0, 7).allowance(order) == Allowance(0, 0, 7)


def test_a_worn_worker_is_replaced_only_where_both_have_room() -> None:
    order = an_order(0, 100)
    Node(100 + KEPT_MIB).admission.check_one_more(order)
    with pytest.raises(Unavailable, match="99 MiB are free"):
        Node(99 + KEPT_MIB).admission.check_one_more(order)


def test_what_is_remembered_is_bounded() -> None:
    node = Node(None)
    for number in range(MEASURED_MAX + 1):
        order = an_order(number, 100)
        node.admission.settle((order.epoch, number), order, 50)
    assert len(node.admission._measured) == MEASURED_MAX
