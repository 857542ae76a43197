"""What a simulation is asked, what it answers, and how it fails."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from din.errors import UsageError

NODES_MAX: Final = 20_000
SECONDS_MAX: Final = 86_400
SITES: Final = 10
DEPLOY_MS: Final = 3_500
"""When models are registered."""
WARM_UP_MS: Final = 6_000
"""Faults begin after this: every node has joined by then."""


class Scenario(Struct, frozen=True, kw_only=True):
    """A fleet, its load and its faults. The seed decides everything else."""

    nodes: int = 1_000
    seconds: int = 60
    seed: int = 1
    deployments: int = 20
    slices: int = 3
    requests_per_second: int = 100
    loss: float = 0.01
    """Share of beats that never arrive."""
    killed: float = 0.1
    """Share of nodes killed, half of them without closing their link; half come back."""
    flapping: float = 0.02
    """Share of nodes that fall silent for some seconds, again and again."""
    partitions: int = 3
    """Times that a whole site is cut off for some seconds."""

    def __post_init__(self) -> None:
        checks = (
            ("nodes", self.nodes, 1, NODES_MAX),
            ("seconds", self.seconds, 1, SECONDS_MAX),
            ("deployments", self.deployments, 0, 1_000),
            ("slices", self.slices, 1, 16),
            ("requests_per_second", self.requests_per_second, 0, 100_000),
            ("loss", self.loss, 0, 1),
            ("killed", self.killed, 0, 1),
            ("flapping", self.flapping, 0, 1),
            ("partitions", self.partitions, 0, 1_000),
        )
        for name, value, low, high in checks:
            if not low <= value <= high:
                raise UsageError(
                    f"{name} is {value}, outside {low}..{high}",
                    hint="see `python -m din.sim --help`",
                )

    @property
    def is_calm(self) -> bool:
        """Nothing goes wrong, so nothing may be suspected of it."""
        return not (self.loss or self.killed or self.flapping or self.partitions)


def calm(nodes: int, seconds: int, seed: int) -> Scenario:
    """A scenario without faults."""
    return Scenario(
        nodes=nodes, seconds=seconds, seed=seed, loss=0, killed=0, flapping=0, partitions=0
    )


class Counts(Struct):
    """What happened, counted."""

    events: int = 0
    beats: int = 0
    joins: int = 0
    kills: int = 0
    suspected: int = 0
    lost: int = 0
    found: int = 0
    """Killed nodes that were lost in time."""
    repairs: int = 0
    refusals: int = 0
    """Plans refused because no node was left that could take a slice."""
    requests: int = 0
    answered: int = 0
    unanswered: int = 0
    """Out of time while no node could hold some slice."""
    retries: int = 0


class Report(Struct, frozen=True, kw_only=True):
    """The outcome of a run that broke nothing."""

    scenario: Scenario
    counts: Counts
    digest: str
    """SHA256 over the log of events and instructions: same seed, same digest."""
    ready: int
    """Nodes ready at the end."""


class InvariantBroken(Exception):
    """A promise did not hold. The message holds all it takes to see it again."""

    def __init__(self, scenario: Scenario, event_index: int, now_ms: int, what: str) -> None:
        super().__init__(
            f"seed {scenario.seed}, event {event_index}, {now_ms} ms: {what}; "
            f"to see it again: simulate({scenario})"
        )
        self.event_index = event_index
        self.what = what
