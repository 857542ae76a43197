"""Names, rows and exit codes; the benchmarks that need no process, with tiny efforts."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from din.bench import run as run_module
from din.bench.__main__ import main
from din.bench.row import Effort, Row, figure, median, missing, percentile
from din.bench.run import BENCHMARKS, groups, is_complete, run
from din.errors import NotFound, Unavailable

TINY = Effort(rounds=1, window_s=0.1, repeats=5)
CHEAP = ("decision", "placement", "route", "registration")


def broken(effort: Effort) -> list[Row]:
    raise Unavailable("the model is not there", hint="fetch it")


def slow_today(effort: Effort) -> list[Row]:
    return [figure("slow", 9.0, "ms", "one try", at_most=1)]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        run_module.BENCHMARKS, "broken", run_module.Benchmark(f"{__name__}:broken", "fails")
    )
    monkeypatch.setitem(
        run_module.BENCHMARKS, "slow", run_module.Benchmark(f"{__name__}:slow_today", "is slow")
    )
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or import_module(__name__))


def test_every_benchmark_of_a_group_exists_and_can_be_imported() -> None:
    for names in groups().values():
        for name in names:
            module, _, function = BENCHMARKS[name].function.partition(":")
            assert callable(getattr(import_module(module), function))
    assert set(BENCHMARKS) == {name for names in groups().values() for name in names}


def test_cutting_is_measured_with_a_row_for_each_goal() -> None:
    rows = run(["cold-slicing", "bitwise", "backend-suite"], lambda row: None, TINY)
    by_name = {row.name: row for row in rows}
    assert sum(name.startswith("cold slicing, ") for name in by_name) == 4
    assert sum(name.startswith("skeleton, ") for name in by_name) == 4
    assert by_name["sliced, bitwise as the whole"].ok
    for way in ("whole", "cut in half", "operator level"):
        assert by_name[f"backend cases, {way}"].ok


def test_encodings_spare_the_bytes_that_they_promise_and_are_held_against_numpy() -> None:
    rows = {row.name: row for row in run(["codec"], lambda row: None, TINY)}
    for kind, left in (("uint8", 0.25), ("fp16", 0.5)):
        crossing = rows[f"{kind}, bytes that cross"]
        assert (crossing.value, crossing.ok) == (left, True)
        assert "of their largest magnitude off" in crossing.how
        cost = rows[f"{kind}, encoding and decoding"]
        assert cost.value is not None
        assert "numpy" in cost.how


@pytest.mark.system
def test_confining_and_a_cold_start_are_measured_with_real_workers() -> None:
    rows = {row.name: row for row in run(["set-up", "cold-start"], lambda row: None, TINY)}
    assert set(rows) >= {"sandbox set-up, a worker", "sandbox set-up, a zygote"}
    assert sum(name.startswith("cold start, ") for name in rows) == 2
    assert all(row.value for row in rows.values())


def test_an_unknown_name_is_refused_before_anything_runs_and_names_the_nearest() -> None:
    told: list[Row] = []
    with pytest.raises(NotFound) as refusal:
        run(["route", "decison"], told.append, TINY)
    assert "decison" in refusal.value.message
    assert refusal.value.hint == "did you mean decision?"
    assert told == []


def test_a_benchmark_asked_for_twice_runs_once() -> None:
    rows = run(["route", "route"], lambda row: None, TINY)
    assert [row.name for row in rows] == ["route of one request"]


@pytest.mark.parametrize("name", CHEAP)
def test_cheap_benchmarks_give_whole_rows(name: str) -> None:
    told: list[Row] = []
    rows = run([name], told.append, TINY)
    assert rows == told
    assert rows
    for row in rows:
        assert row.value is not None
        assert row.unit
        assert "cores" in row.how
        assert (row.goal is None) == (row.ok is None)


def test_placements_are_the_optimum() -> None:
    rows = {row.name: row for row in run(["placement"], lambda row: None, TINY)}
    assert rows["placement, equal to the optimum"].ok is True


def test_a_missed_goal_is_a_result_and_a_failure_is_a_row_with_the_reason(stand_ins: None) -> None:
    rows = run(["broken", "slow"], lambda row: None, TINY)
    assert rows[0] == missing("broken", "the model is not there (fetch it)")
    assert rows[1].ok is False
    assert rows[1].value == 9.0
    assert not is_complete(rows)
    assert is_complete(rows[1:])


def test_exit_codes_tell_a_missed_goal_from_one_that_could_not_run(
    stand_ins: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "slow", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row) == {"name", "value", "unit", "goal", "ok", "how"}
    assert row["ok"] is False
    assert main(["run", "broken"]) == 1
    assert "could not run: the model is not there" in capsys.readouterr().out
    assert main(["run", "nothing"]) == NotFound.exit_code
    assert "there is no benchmark 'nothing'" in capsys.readouterr().err


def test_the_list_names_groups_and_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "road" in said
    assert "decision" in said


def test_figures_are_held_against_their_goals() -> None:
    assert figure("a", 1.0, "ms", "how", at_most=1).ok is True
    assert figure("a", 1.1, "ms", "how", at_most=1).ok is False
    assert figure("a", 0.9, "x", "how", at_least=1).ok is False
    assert figure("a", 0.9, "x", "how").ok is None
    assert figure("a", 0.123456, "x", "how").value == 0.1235


def test_percentiles_of_few_values() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert percentile([1.0], 0.99) == 1.0
    assert percentile(list(map(float, range(100))), 0.99) == 99.0


def test_a_known_cut_is_measured_against_its_goal() -> None:
    (row,) = run(["slice-cache"], lambda row: None, TINY)
    assert row.value is not None, row
    assert (row.name, row.unit, row.goal) == ("slice cache hit", "ms", "<= 0.1")
    assert row.value > 0
    assert "slice-cache" in groups()["slicing"]
