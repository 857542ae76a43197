"""Fill a world with machines, load and faults, all from the seed, and run it."""

from __future__ import annotations

from functools import partial

from din.discovery.events import Woke
from din.sim.node import SimNode
from din.sim.scenario import DEPLOY_MS, SITES, WARM_UP_MS, Report, Scenario
from din.sim.world import World


def simulate(scenario: Scenario) -> Report:
    """Run one scenario. Raises InvariantBroken with seed and event index."""
    world = World(scenario)
    _power_up(world)
    world.timers.after(DEPLOY_MS, partial(_deploy, world))
    _send_requests(world)
    _kill_some(world)
    _let_some_flap(world)
    _cut_off_sites(world)
    return world.run()


def _power_up(world: World) -> None:
    """Half of the fleet at once, as after a power cut; the rest within three seconds."""
    for node in world.nodes.values():
        delay_ms = 0 if world.random.random() < 0.5 else world.random.randrange(3_000)
        world.timers.after(delay_ms, partial(world.start, node))


def _deploy(world: World) -> None:
    world.control.is_deploying = True
    world.tell(Woke())


def _fault_time(world: World, tail_ms: int = 0) -> int | None:
    """A moment for a fault that leaves `tail_ms` to see its end; None in a short run."""
    end_ms = world.scenario.seconds * 1_000 - tail_ms
    return world.random.randrange(WARM_UP_MS, end_ms) if end_ms > WARM_UP_MS else None


def _some(world: World, share: float) -> list[SimNode]:
    return world.random.sample(list(world.nodes.values()), round(world.scenario.nodes * share))


def _send_requests(world: World) -> None:
    scenario = world.scenario
    if not scenario.deployments:
        return
    last_ms = scenario.seconds * 1_000
    count = scenario.requests_per_second * max(scenario.seconds - WARM_UP_MS // 1_000, 0)
    for _ in range(count):
        deployment = world.random.choice(world.control.deployments)
        at_ms = world.random.randrange(WARM_UP_MS, last_ms)
        world.timers.after(at_ms, partial(world.request, deployment))


def _kill_some(world: World) -> None:
    for node in _some(world, world.scenario.killed):
        at_ms = _fault_time(world)
        if at_ms is not None:
            world.timers.after(at_ms, partial(_strike, world, node))


def _strike(world: World, node: SimNode) -> None:
    """Kill this node, or as often one that holds a slice, since that is where it hurts."""
    holding = world.control.holding()
    if holding and world.random.random() < 0.5:
        node = world.nodes[world.random.choice(holding)]
    world.kill(node, is_loud=world.random.random() < 0.5)
    if world.random.random() < 0.5:
        world.timers.after(world.random.randrange(200, 30_000), partial(world.start, node))


def _let_some_flap(world: World) -> None:
    for node in _some(world, world.scenario.flapping):
        at_ms = _fault_time(world)
        while at_ms is not None and at_ms < world.scenario.seconds * 1_000:
            world.timers.after(at_ms, partial(world.silence, node, is_silent=True))
            at_ms += world.random.randrange(2_000, 12_000)
            world.timers.after(at_ms, partial(world.silence, node, is_silent=False))
            at_ms += world.random.randrange(1_000, 8_000)


def _cut_off_sites(world: World) -> None:
    for _ in range(world.scenario.partitions):
        at_ms = _fault_time(world)
        if at_ms is None:
            return
        site = world.random.randrange(SITES)
        heal_ms = at_ms + world.random.randrange(3_000, 20_000)
        for node in world.nodes.values():
            if node.site == site:
                world.timers.after(at_ms, partial(world.silence, node, is_silent=True))
                world.timers.after(heal_ms, partial(world.silence, node, is_silent=False))
