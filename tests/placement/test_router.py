from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from din.domain.node import NodeId
from din.errors import CannotPlace
from din.placement.router import Candidate, choose_route

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def test_the_smallest_expected_wait_wins():
    offered = [[Candidate(A, 3, 10.0), Candidate(B, 0, 30.0), Candidate(C, 1, 14.0)]]
    assert choose_route(offered, Random(0)) == (C,)


def test_an_idle_sick_node_loses_against_an_idle_healthy_one():
    """The published formula n*t scores every idle node 0; n+1 does not."""
    offered = [[Candidate(A, 0, 10.0, 0.3), Candidate(B, 0, 10.0, 1.0)]]
    assert {choose_route(offered, Random(seed)) for seed in range(20)} == {(B,)}


def test_equal_nodes_keep_the_tensors_where_they_are():
    offered = [[Candidate(A, 0, 5.0), Candidate(B, 0, 5.0)] for _ in range(4)]
    for seed in range(20):
        assert len(set(choose_route(offered, Random(seed)))) == 1


def test_ties_are_broken_at_random():
    offered = [[Candidate(A, 0, None), Candidate(B, 0, None), Candidate(C, 0, None)]]
    random = Random(3)
    seen = Counter(choose_route(offered, random) for _ in range(600))
    assert len(seen) == 3
    assert min(seen.values()) > 120


def test_a_node_on_the_same_host_is_preferred_among_equals():
    offered = [[Candidate(A, 0, 5.0), Candidate(B, 0, 5.0, 1.0, is_local=True)]]
    assert {choose_route(offered, Random(seed)) for seed in range(20)} == {(B,)}


def test_a_replica_that_has_not_run_counts_as_the_mean_of_its_fellows():
    offered = [[Candidate(A, 0, None), Candidate(B, 1, 10.0), Candidate(C, 0, 30.0)]]
    assert choose_route(offered, Random(0)) in {(A,), (B,)}
    offered = [[Candidate(A, 2, None), Candidate(B, 1, 10.0), Candidate(C, 0, 30.0)]]
    assert choose_route(offered, Random(0)) == (B,)


def test_excluded_nodes_take_no_part():
    offered = [[Candidate(A, 0, 1.0), Candidate(B, 9, 90.0)]]
    assert choose_route(offered, Random(0), excluded={"a"}) == (B,)


def test_a_slice_without_a_replica_is_named():
    with pytest.raises(CannotPlace, match=r"slice 'head' has no ready replica$"):
        choose_route([[Candidate(A, 0, 1.0)], []], Random(0), names=("backbone", "head"))
    with pytest.raises(CannotPlace, match="besides the 1 left out of this attempt"):
        choose_route([[Candidate(A, 0, 1.0)]], Random(0), excluded={"a"})


candidates = st.lists(
    st.builds(
        Candidate,
        st.sampled_from([A, B, C]),
        st.integers(0, 9),
        st.one_of(st.none(), st.floats(0.01, 1e4)),
        st.floats(0, 1),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda each: each.node_id,
)


@given(st.lists(candidates, min_size=1, max_size=5), st.integers(0, 99))
def test_a_route_takes_one_offered_node_for_each_slice(offered, seed):
    route = choose_route(offered, Random(seed))
    assert len(route) == len(offered)
    for node_id, each in zip(route, offered, strict=True):
        assert node_id in {candidate.node_id for candidate in each}
