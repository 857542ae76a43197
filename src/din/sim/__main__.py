"""`python -m din.sim`: run one scenario and print what happened."""

from __future__ import annotations

import argparse
import sys
import time

from din.errors import DinError
from din.sim.run import simulate
from din.sim.scenario import InvariantBroken, Report, Scenario


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation the arguments ask for. 0 = every promise held, 1 = one did not."""
    defaults = Scenario()
    parser = argparse.ArgumentParser(
        prog="python -m din.sim",
        description="Drive membership, placement and routing in virtual time, with faults.",
    )
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--seconds", type=int, default=defaults.seconds, help="of virtual time")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    asked = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        report = simulate(Scenario(nodes=asked.nodes, seconds=asked.seconds, seed=asked.seed))
    except InvariantBroken as broken:
        sys.stderr.write(f"{broken}\n")
        return 1
    except DinError as error:
        sys.stderr.write(f"{error.story()}\n")
        return error.exit_code
    elapsed = time.perf_counter() - started
    sys.stdout.write("\n".join(_rows(report, elapsed)) + "\n")
    return 0


def _rows(report: Report, elapsed_seconds: float) -> list[str]:
    counts, scenario = report.counts, report.scenario
    speed = scenario.seconds / max(elapsed_seconds, 1e-9)
    rows = (
        ("nodes", f"{scenario.nodes}, {report.ready} ready at the end"),
        ("time", f"{scenario.seconds} s in {elapsed_seconds:.2f} s, {speed:.0f}x real time"),
        ("events", f"{counts.events}, of them {counts.beats} heartbeats"),
        ("joins", f"{counts.joins}"),
        ("killed", f"{counts.kills}; {counts.found} stayed dead and were found in time"),
        ("suspected, lost", f"{counts.suspected}, {counts.lost}"),
        ("repairs", f"{counts.repairs}; {counts.refusals} refused for want of a node"),
        ("requests", f"{counts.requests}: {counts.answered} answered, {counts.retries} retries, "
                     f"{counts.unanswered} unanswered"),
        ("digest", report.digest[:16]),
    )  # fmt: skip
    return [f"{name:<16} {value}" for name, value in rows]


if __name__ == "__main__":
    raise SystemExit(main())
