"""What a given map of operators to slices and nodes costs, for whoever must compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from din.domain.cuts import CutTable
from din.domain.model import GATEWAY
from din.domain.node import NodeId
from din.domain.strategy import Objective
from din.placement.boundaries import Blocks
from din.placement.partitioning import SLICE_MS
from din.placement.places import CutWishes, Device
from din.placement.sharing import Turns, loads_of, shares_of
from din.placement.speeds import measured_for, operator_ms
from din.placement.ways import Ways, way_times


def cost_of(
    blocks: Blocks,
    devices: Sequence[Device],
    wishes: CutWishes,
    ways: Ways,
    profiles: Mapping[str, Sequence[float]],
    assignment: Sequence[int],
    nodes: Sequence[NodeId],
) -> float | None:
    """Cost in the unit of the objective of slices on nodes; None when a node is not here, may not
    hold its slice, or (for `energy`) has no meter. Memory is not looked at: it runs there."""
    table = blocks.boundaries.table
    places = {each.node_id: number for number, each in enumerate(devices)}
    if any(node not in places for node in nodes):
        return None
    used = [devices[places[node]] for node in nodes]
    for rule in wishes.rules:
        numbers = set(assignment[rule.first : rule.last + 1])
        if not all(rule.permits(used[number]) for number in numbers):
            return None
    if wishes.objective == "energy" and any(each.watts is None for each in used):
        return None
    compute = [0.0] * len(used)
    for number, device in enumerate(used):
        measured = measured_for(table, profiles, device.device_class)
        times = operator_ms(table, device.gflops, measured)
        mine = [place for place, home in enumerate(assignment) if home == number]
        compute[number] = float(times[mine].sum())
    return _Judge(table, used, ways, wishes, compute, assignment).cost()


class _Judge:
    def __init__(
        self,
        table: CutTable,
        used: Sequence[Device],
        ways: Ways,
        wishes: CutWishes,
        compute: list[float],
        assignment: Sequence[int],
    ) -> None:
        self.used, self.compute = used, compute
        self.shares = shares_of(used)
        self.objective: Objective = wishes.objective
        self.times = way_times([each.node_id for each in used], ways)
        self.given = sum(each.nbytes for each in table.values if each.maker == GATEWAY)
        self.taken = sum(each.nbytes for each in table.values if each.is_output)
        self.flows: dict[tuple[int, int], int] = defaultdict(int)
        for value in table.values:
            if value.maker == GATEWAY:
                continue
            home = assignment[value.maker]
            for target in {assignment[reader] for reader in value.readers} - {home}:
                self.flows[home, target] += value.nbytes

    def cost(self) -> float:
        match self.objective:
            case "latency":
                return self._latency()
            case "throughput":
                return self._throughput()
            case "energy":
                return self._energy()
            case "bytes":
                return float(sum(size for pair, size in self.flows.items() if self._is_apart(pair)))

    def _is_apart(self, pair: tuple[int, int]) -> bool:
        return self.used[pair[0]].node_id != self.used[pair[1]].node_id

    def _step(self, pair: tuple[int, int]) -> float:
        """A transfer; between slices of one node what a slice costs by itself."""
        if not self._is_apart(pair):
            return SLICE_MS
        return SLICE_MS + float(self.times.hop[pair] + self.times.per_byte[pair] * self.flows[pair])

    def _enter(self, number: int) -> float:
        return SLICE_MS + float(
            self.times.gateway_hop[number] + self.times.gateway_per_byte[number] * self.given
        )

    def _leave(self, number: int) -> float:
        return float(
            self.times.gateway_hop[number] + self.times.gateway_per_byte[number] * self.taken
        )

    def _latency(self) -> float:
        """When the last slice is done: each starts when its inputs and its node are there."""
        ends: dict[int, float] = {}
        free: dict[NodeId, float] = defaultdict(float)
        turns = Turns(self.shares)
        last = 0.0
        for number, device in enumerate(self.used):
            sources = [pair for pair in self.flows if pair[1] == number and pair[0] in ends]
            arrives = [ends[pair[0]] + self._step(pair) for pair in sources]
            start = max([*arrives, free[device.node_id], float(turns.free_ms()[number])])
            start = start if arrives else max(start, self._enter(number))
            ends[number] = free[device.node_id] = start + self.compute[number]
            turns.take(number, ends[number])
            is_last = not any(pair[0] == number for pair in self.flows)
            last = max(last, ends[number] + (self._leave(number) if is_last else 0.0))
        return last

    def _throughput(self) -> float:
        busy: dict[NodeId, float] = defaultdict(float)
        for number, device in enumerate(self.used):
            busy[device.node_id] += self.compute[number]
        steps = [self._step(pair) for pair in self.flows if self._is_apart(pair)]
        loads = loads_of(self.shares, np.array(self.compute)).tolist()
        return max(
            [*busy.values(), *loads, *steps, self._enter(0), self._leave(len(self.used) - 1)]
        )

    def _energy(self) -> float:
        watts = [each.watts or 0.0 for each in self.used]
        total = sum(power * time for power, time in zip(watts, self.compute, strict=True))
        for pair in self.flows:
            if self._is_apart(pair):
                total += self._step(pair) * (watts[pair[0]] + watts[pair[1]])
        return total + self._enter(0) * watts[0] + self._leave(len(watts) - 1) * watts[-1]
