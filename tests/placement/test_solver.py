from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from din.placement.solver import Problem, solve


def brute_force(problem: Problem) -> float:
    units, nodes = problem.cost.shape
    best = float("inf")
    for choice in product(range(nodes), repeat=units):
        used = [0.0] * nodes
        for unit, node in enumerate(choice):
            used[node] += problem.memory[unit]
        if any(used[node] > problem.room[node] for node in set(choice)):
            continue
        if problem.slots is not None:
            taken = [
                sum(p for p, n in zip(problem.parts, choice, strict=True) if n == node)
                for node in range(nodes)
            ]
            if any(taken[node] > problem.slots[node] for node in set(choice)):
                continue
        best = min(best, price(problem, choice))
    return best


def price(problem: Problem, choice) -> float:
    return sum(float(problem.cost[unit, node]) for unit, node in enumerate(choice)) + sum(
        penalty for (a, b), penalty in problem.penalties.items() if choice[a] != choice[b]
    )


@st.composite
def problems(draw):
    units = draw(st.integers(1, 5))
    nodes = draw(st.integers(1, 4))
    costs = st.one_of(st.integers(0, 9).map(float), st.just(float("inf")))
    cost = draw(
        st.lists(st.lists(costs, min_size=nodes, max_size=nodes), min_size=units, max_size=units)
    )
    pairs = [(a, b) for a in range(units) for b in range(a + 1, units)]
    penalties = (
        draw(st.dictionaries(st.sampled_from(pairs), st.integers(0, 6).map(float))) if pairs else {}
    )
    memory = draw(st.lists(st.integers(0, 6).map(float), min_size=units, max_size=units))
    room = draw(st.lists(st.integers(0, 12).map(float), min_size=nodes, max_size=nodes))
    order = draw(st.permutations(range(nodes)))
    parts = draw(st.lists(st.integers(0, 3), min_size=units, max_size=units))
    slots = draw(st.none() | st.lists(st.integers(0, 6), min_size=nodes, max_size=nodes))
    return Problem(
        np.array(cost),
        penalties,
        memory,
        np.array(room),
        np.array(order, dtype=float),
        () if slots is None else parts,
        None if slots is None else np.array(slots),
    )


@given(problems())
@settings(max_examples=400, deadline=None)
def test_the_solver_finds_what_trying_everything_finds(problem):
    solution = solve(problem)
    best = brute_force(problem)
    if solution is None:
        assert best == float("inf")
        return
    assert solution.is_exact
    assert solution.cost == pytest.approx(best)
    assert price(problem, solution.nodes) == pytest.approx(solution.cost)


def test_equal_nodes_with_little_memory_are_solved_without_trying_every_pair():
    units, nodes = 6, 60
    problem = Problem(
        np.ones((units, nodes)),
        {(u, u + 1): 0.5 for u in range(units - 1)},
        [1.0] * units,
        np.full(nodes, 2.0),
        np.arange(nodes, dtype=float),
    )
    solution = solve(problem, expansions_max=50)
    assert solution is not None
    assert solution.is_exact
    assert solution.cost == pytest.approx(7.0)


def test_a_search_that_is_cut_short_says_so():
    rng = np.random.default_rng(1)
    problem = Problem(
        rng.random((8, 8)) * 0.01,
        {(a, b): 1.0 for a in range(8) for b in range(a + 1, 8)},
        [1.0] * 8,
        np.full(8, 2.0),
        np.arange(8, dtype=float),
    )
    solution = solve(problem, expansions_max=40)
    assert solution is not None
    assert not solution.is_exact


def test_order_settles_equal_costs():
    problem = Problem(np.ones((1, 3)), {}, [0.0], np.ones(3), np.array([2.0, 0.0, 1.0]))
    solution = solve(problem)
    assert solution is not None
    assert solution.nodes == (1,)
