"""Which node a name or an id means."""

from __future__ import annotations

import pytest

from din.errors import Conflict, NotFound
from din.gateway.registration.names import id_of

ONE, OTHER, THIRD = "aa" * 8, "ab" * 8, "ac" * 8


def nobody(_node_id: str) -> bool:
    return False


def test_an_id_means_its_node_even_if_another_is_called_so() -> None:
    names = {ONE: "edge-1", OTHER: ONE}
    assert id_of(ONE, names, "here", nobody) == ONE
    assert id_of("edge-1", names, "here", nobody) == ONE
    assert id_of("ab", names, "here", nobody) == OTHER


def test_what_means_several_nodes_or_none_is_refused() -> None:
    with pytest.raises(Conflict, match="means 2 nodes"):
        id_of("a", {ONE: "edge-1", OTHER: "edge-2"}, "here", nobody)
    with pytest.raises(NotFound):
        id_of("", {ONE: "edge-1"}, "here", nobody)


def test_a_name_means_the_machine_that_is_back_and_not_the_one_that_was_thrown_out() -> None:
    names = {ONE: "edge-1", OTHER: "edge-1", THIRD: "edge-2"}
    assert id_of("edge-1", names, "here", ONE.__eq__) == OTHER
    assert id_of("edge-1", names, "here", OTHER.__eq__) == ONE
    # An id and a name that nobody else has still mean it.
    assert id_of(ONE, names, "here", ONE.__eq__) == ONE
    assert id_of("edge-2", names, "here", THIRD.__eq__) == THIRD
    with pytest.raises(Conflict, match="means 2 nodes"):
        id_of("edge-1", names, "here", {ONE, OTHER}.__contains__)
