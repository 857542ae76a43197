import pytest

from din.discovery.schedule import BeatSchedule
from din.domain.node import NodeId
from din.errors import UsageError
from din.placement.table import FleetTable
from din.sim.__main__ import main
from din.sim.control import Control
from din.sim.run import simulate
from din.sim.scenario import InvariantBroken, Scenario, calm
from din.sim.timers import Timers


def small(seed: int) -> Scenario:
    return Scenario(
        nodes=40, seconds=45, seed=seed, deployments=12, slices=5, killed=0.4, flapping=0.1
    )


def tight(seed: int) -> Scenario:
    """Few nodes for many slices: plans are refused, and models come back."""
    return Scenario(
        nodes=4, seconds=60, seed=seed, deployments=8, killed=0.7, flapping=0.3, partitions=3
    )


def simulate_all(seeds: range) -> None:
    for seed in seeds:
        simulate(small(seed))


def test_a_thousand_nodes_with_faults_keep_every_promise():
    report = simulate(Scenario(nodes=1_000, seconds=45, seed=1))
    assert report.counts.unanswered == 0
    assert report.counts.answered == report.counts.requests > 0
    assert report.counts.found > 20
    assert report.counts.repairs > 0


@pytest.mark.parametrize("seed", range(12))
def test_a_fleet_that_loses_two_fifths_of_its_nodes_answers_everything(seed):
    """T15, T19, T51: dead nodes are left at once, and no request waits for ever."""
    report = simulate(small(seed))
    assert report.counts.unanswered == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_fleet_too_small_for_its_models_refuses_and_recovers(seed):
    simulate(tight(seed))


def test_too_small_fleets_do_refuse_plans():
    assert sum(simulate(tight(seed)).counts.refusals for seed in range(8)) > 0


def test_without_faults_nobody_is_suspected_and_nothing_is_repaired():
    counts = simulate(calm(300, 40, seed=3)).counts
    assert (counts.suspected, counts.lost, counts.repairs, counts.retries) == (0, 0, 0, 0)
    assert counts.joins == 300
    assert counts.answered == counts.requests


def test_flapping_nodes_do_not_make_work_go_back_and_forth():
    """T14: nodes that fall silent for some seconds are suspect, and requests are answered."""
    report = simulate(Scenario(nodes=60, seconds=60, seed=5, flapping=0.5, killed=0, partitions=0))
    assert report.counts.suspected > 10
    assert report.counts.unanswered == 0


def test_the_same_seed_gives_the_same_digest_and_another_seed_another():
    assert simulate(small(7)) == simulate(small(7))
    assert simulate(small(7)).digest != simulate(small(8)).digest


def test_a_node_that_wakes_again_loads_what_it_missed():
    """A node that fell silent while it was told to load, and came back under the same session."""
    assert simulate(small(79)).counts.unanswered == 0


def test_a_router_that_ignores_suspicion_is_caught(monkeypatch):
    def is_known(self: Control, node_id: NodeId) -> bool:
        return node_id in self.table

    monkeypatch.setattr(Control, "is_ready", is_known)
    with pytest.raises(InvariantBroken, match="a request goes to"):
        simulate_all(range(20))


def test_a_table_that_misses_a_status_is_caught(monkeypatch):
    original = FleetTable.set_status

    def forgets_loss(self, node_id, status):
        if status != "lost":
            original(self, node_id, status)

    monkeypatch.setattr(FleetTable, "set_status", forgets_loss)
    with pytest.raises(InvariantBroken, match=r"seed 3, event \d+, .*the table has"):
        simulate(small(3))


def test_a_repair_that_never_runs_is_caught(monkeypatch):
    def repairs_once(self, now_ms):
        if now_ms < 5_000:
            return original(self, now_ms)
        return False

    original = Control.repair
    monkeypatch.setattr(Control, "repair", repairs_once)
    with pytest.raises(InvariantBroken, match="found no answer in time"):
        simulate_all(range(10))


def test_a_membership_that_gives_up_too_early_is_caught(monkeypatch):
    monkeypatch.setattr(BeatSchedule, "suspect_after_ms", property(lambda _: 2_000))
    with pytest.raises(InvariantBroken, match="suspect for no reason"):
        simulate(calm(50, 30, seed=1))


def test_timers_run_in_order_of_time_and_then_of_asking():
    timers = Timers()
    seen: list[str] = []
    timers.after(5, lambda: seen.append("second"))
    timers.after(5, lambda: seen.append("third"))
    timers.after(1, lambda: seen.append("first"))
    while timers.next_ms() is not None:
        timers.run_next()
    assert seen == ["first", "second", "third"]
    assert timers.now_ms == 5


def test_the_command_prints_a_table_and_the_digest(capsys):
    assert main(["--nodes", "20", "--seconds", "20", "--seed", "4"]) == 0
    out = capsys.readouterr().out
    assert "x real time" in out
    assert "digest" in out


def test_a_broken_promise_makes_the_command_fail_with_seed_and_event(capsys, monkeypatch):
    monkeypatch.setattr(Control, "repair", lambda self, now_ms: False)
    assert main(["--nodes", "20", "--seconds", "30", "--seed", "4"]) == 1
    assert capsys.readouterr().err.startswith("seed 4, event ")


def test_a_scenario_that_cannot_be_is_refused(capsys):
    with pytest.raises(UsageError, match="nodes is 0, outside"):
        Scenario(nodes=0)
    assert main(["--nodes", "0"]) == 2
    assert "hint:" in capsys.readouterr().err
