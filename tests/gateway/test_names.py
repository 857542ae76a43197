"""Which node a name or an id means."""

from __future__ import annotations

import pytest

from din.errors import Conflict, NotFound
from din.gateway.names import id_of

ONE, OTHER = "aa" * 8, "ab" * 8


def test_an_id_means_its_node_even_if_another_is_called_so() -> None:
    names = {ONE: "edge-1", OTHER: ONE}
    assert id_of(ONE, names, "here") == ONE
    assert id_of("edge-1", names, "here") == ONE
    assert id_of("ab", names, "here") == OTHER


def test_what_means_several_nodes_or_none_is_refused() -> None:
    with pytest.raises(Conflict, match="means 2 nodes"):
        id_of("a", {ONE: "edge-1", OTHER: "edge-2"}, "here")
    with pytest.raises(NotFound):
        id_of("", {ONE: "edge-1"}, "here")
