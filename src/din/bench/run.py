"""Which benchmarks there are, and running them one after the other.

A goal that is not reached is a result (`ok: false`), not an error. A benchmark that cannot run
gives one row without a value that says why, and the others still run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NamedTuple

from din.bench.row import Effort, Row, missing
from din.errors import DinError, NotFound

Measure = Callable[[Effort], Iterable[Row]]


class Benchmark(NamedTuple):
    """Where a benchmark is found, and what it measures."""

    function: str
    """`module:function` of a Measure; imported when it runs."""
    about: str


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "decision": Benchmark("din.bench.decision:decisions", "choosing a node out of many"),
    "placement": Benchmark("din.bench.decision:placements", "placing five slices on 100 nodes"),
    "route": Benchmark("din.bench.decision:routes", "choosing replicas for one request"),
    "registration": Benchmark("din.bench.decision:registrations", "bytes that a node registers by"),
    "link": Benchmark("din.bench.links:links", "one frame between two processes"),
    "heartbeats": Benchmark("din.bench.beats:heartbeats", "beats that a gateway takes"),
    "arena": Benchmark("din.bench.hops:arena", "agent to worker through shared memory"),
    "hops": Benchmark("din.bench.hops:hops", "worker to worker through both agents"),
    "blazeface": Benchmark(
        "din.bench.overhead:blazeface", "a small real model against ONNX Runtime by itself"
    ),
    "trivial": Benchmark("din.bench.overhead:trivial", "600 KB in and out, nothing to compute"),
    "slices": Benchmark("din.bench.slices:slices", "five slices against the whole, one process"),
    "two-nodes": Benchmark("din.bench.hops:two_nodes", "two slices on two nodes against the whole"),
    "idle": Benchmark("din.bench.resting:idle", "memory at rest, and how fast it starts"),
    "start-up": Benchmark("din.bench.resting:start_up", "`din --help` against bare Python"),
    "kill": Benchmark("din.bench.resting:kill", "a worker killed under load"),
    "sealing": Benchmark("din.bench.sealing:sealing", "sealed and signed slices, and their keys"),
    "encrypted-link": Benchmark(
        "din.bench.encrypted:encrypted_links", "one frame by TLS against plain TCP"
    ),
    "datagrams": Benchmark("din.bench.datagrams:datagrams", "beats by datagram a gateway takes"),
    "slice-cache": Benchmark("din.bench.cached:cache_hits", "a cut of a model that is known"),
    "choice": Benchmark("din.bench.choosing:choices", "where to cut, for the nodes that are here"),
    "cold-slicing": Benchmark("din.bench.cutting:cold", "a model never seen, cut in five"),
    "bitwise": Benchmark("din.bench.cutting:bitwise", "random cuts against the whole"),
    "codec": Benchmark("din.bench.codec:codec", "encodings at the cuts against numpy"),
    "backend-suite": Benchmark("din.bench.cutting:backend_suite", "ONNX's own test cases, cut"),
    "set-up": Benchmark("din.bench.cold_start:set_up", "confining a worker"),
    "cold-start": Benchmark(
        "din.bench.cold_start:cold_start", "a worker's first result against a plain program's"
    ),
    "join": Benchmark("din.bench.joining:joins", "a machine gets its certificate by a token"),
}
TRUST: Final = (
    "encrypted-link",
    "sealing",
    "join",
    "datagrams",
)
CUTTING: Final = ("slice-cache", "choice", "cold-slicing", "bitwise", "codec", "backend-suite")
EXECUTION: Final = ("set-up", "cold-start")
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "road": tuple(name for name in BENCHMARKS if name not in (*TRUST, *CUTTING, *EXECUTION)),
    "slicing": (*CUTTING, "slices"),
    "trust": TRUST,
    "execution": EXECUTION,
}


def groups() -> dict[str, tuple[str, ...]]:
    """Group -> its benchmarks, in the order in which they run."""
    return dict(GROUPS)


def run(
    names: Sequence[str], out: Callable[[Row], None], effort: Effort | None = None
) -> list[Row]:
    """Run groups or single benchmarks; each row goes to `out` as soon as it is known.

    Raises NotFound for an unknown name before anything runs.
    """
    rows: list[Row] = []
    for name in chosen(names):
        for row in _rows(name, effort or Effort()):
            rows.append(row)
            out(row)
    return rows


def is_complete(rows: Iterable[Row]) -> bool:
    """Whether everything that was asked for could be measured."""
    return all(row.value is not None for row in rows)


def _rows(name: str, effort: Effort) -> Iterable[Row]:
    module, _, function = BENCHMARKS[name].function.partition(":")
    try:
        measure: Measure = getattr(import_module(module), function)
        yield from measure(effort)
    except DinError as error:
        yield missing(name, f"{error.message} ({error.hint})" if error.hint else error.message)
    except (OSError, ImportError) as error:
        yield missing(name, str(error))


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Single benchmarks in place of groups. Raises NotFound for an unknown name."""
    chosen: dict[str, None] = {}
    for name in names:
        if name not in GROUPS and name not in BENCHMARKS:
            near = get_close_matches(name, [*GROUPS, *BENCHMARKS], n=1)
            hint = f"did you mean {near[0]}?" if near else "`din bench list` shows all"
            raise NotFound(f"there is no benchmark {name!r}", hint=hint)
        chosen.update(dict.fromkeys(GROUPS.get(name, (name,))))
    return tuple(chosen)
