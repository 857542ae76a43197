"""Words and numbers for a choice of cuts: what each slice is, why it was chosen, why it was not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from din.domain.cuts import ChosenSlice, CutChoice, CutTable, CutWay, NodeAlone
from din.domain.estimates import MIB, SLICE_BASE_MIB, memory_mib
from din.domain.model import GATEWAY
from din.domain.node import NodeId
from din.errors import CannotPlace
from din.placement.chain import Chain, Matrix, Way, runs_of
from din.placement.ways import HERE, Ways

if TYPE_CHECKING:
    from din.placement.partitioning import CutWishes, Device, RangeRule

GATEWAY_NAME: Final = "gateway"


def described(
    table: CutTable,
    wishes: CutWishes,
    devices: Sequence[Device],
    times: Matrix,
    assignment: Sequence[int],
    nodes: Sequence[int],
) -> tuple[ChosenSlice, ...]:
    """Each slice with its node and its numbers."""
    members: list[list[int]] = [[] for _ in nodes]
    for place, number in enumerate(assignment):
        members[number].append(place)
    crossing, guessed = _crossing(table, assignment)
    private = [range(rule.first, rule.last + 1) for rule in wishes.rules if rule.is_sensitive]
    found: list[ChosenSlice] = []
    for number, (places, node) in enumerate(zip(members, nodes, strict=True)):
        operators = [table.operators[place] for place in places]
        inside = set(places)
        weights = sum(each.weight_bytes for each in operators)
        weights += sum(each.nbytes for each in table.shared if inside.intersection(each.readers))
        peak = max((each.live_bytes for each in operators), default=0)
        found.append(
            ChosenSlice(
                first=operators[0].name if operators else "",
                last=operators[-1].name if operators else "",
                operators=len(operators),
                node_id=devices[node].node_id,
                node=devices[node].name,
                compute_ms=round(float(times[places, node].sum()), 3),
                memory_mib=memory_mib(weights, peak),
                is_sensitive=any(place in span for span in private for place in places),
                crossing_bytes=crossing[number],
                is_exact=number not in guessed,
            )
        )
    return tuple(found)


def _crossing(table: CutTable, assignment: Sequence[int]) -> tuple[dict[int, int], set[int]]:
    """By slice the bytes that leave it for other slices (once for each), and where these are
    estimates."""
    nbytes: dict[int, int] = defaultdict(int)
    guessed: set[int] = set()
    if not any(assignment):
        return nbytes, guessed
    for value in table.values:
        if value.maker == GATEWAY:
            continue
        home = assignment[value.maker]
        targets = {assignment[reader] for reader in value.readers} - {home}
        nbytes[home] += value.nbytes * len(targets)
        if targets and not value.is_exact:
            guessed.add(home)
    return nbytes, guessed


def best_split(chain: Chain, way: Way, *, is_pipeline: bool) -> Way | None:
    """The best split that was not worth it: what was found, else the best single cut."""
    if len(runs_of(way.nodes)) > 1:
        return way
    if chain.nodes < 2 or chain.blocks < 2 or chain.slices_max < 2:
        return None
    before = np.cumsum(chain.cost, axis=0)
    after = np.cumsum(chain.cost[::-1], axis=0)[::-1]
    best = Way((), np.inf, is_exact=True)
    for edge in range(1, chain.blocks):
        step = chain.step(edge - 1)
        first, last = before[edge - 1][:, None], after[edge][None, :]
        if is_pipeline:
            ends = np.maximum(chain.enter[:, None], chain.leave[None, :])
            total = np.maximum(np.maximum(first, last), np.maximum(step, ends))
        else:
            total = chain.enter[:, None] + first + step + last + chain.leave[None, :]
        np.fill_diagonal(total, np.inf)
        one, other = divmod(int(total.argmin()), chain.nodes)
        if total[one, other] < best.cost:
            nodes = (one,) * edge + (other,) * (chain.blocks - edge)
            best = Way(nodes, float(total[one, other]), is_exact=True)
    return best if best.nodes else None


def told_ways(
    table: CutTable,
    devices: Sequence[tuple[NodeId, str]],
    ways: Ways,
    assignment: Sequence[int],
    nodes: Sequence[int],
) -> tuple[CutWay, ...]:
    """Over which ways tensors go, as they are reckoned with; those from slice to slice first.
    `devices`: id and name, `nodes`: of which each slice is."""
    given: dict[int, int] = defaultdict(int)
    between: dict[tuple[int, int], int] = defaultdict(int)
    taken: dict[int, int] = defaultdict(int)
    for value in table.values:
        readers = {assignment[reader] for reader in value.readers}
        if value.maker == GATEWAY:
            for node in {nodes[reader] for reader in readers}:
                given[node] += value.nbytes
            continue
        home = nodes[assignment[value.maker]]
        for slice_number in readers - {assignment[value.maker]}:
            if nodes[slice_number] != home:
                between[home, nodes[slice_number]] += value.nbytes
        if value.is_output:
            taken[home] += value.nbytes
    outside = (HERE, GATEWAY_NAME)
    flows = [(devices[one], devices[other], size) for (one, other), size in between.items()]
    flows += [(outside, devices[node], size) for node, size in given.items()]
    flows += [(devices[node], outside, size) for node, size in taken.items()]
    return tuple(_told_way(source, target, size, ways) for source, target, size in flows)


def _told_way(
    source: tuple[NodeId, str], target: tuple[NodeId, str], nbytes: int, ways: Ways
) -> CutWay:
    facts = ways.between(source[0], target[0])
    return CutWay(
        source=source[1],
        target=target[1],
        nbytes=nbytes,
        ms=round(facts.latency_ms + nbytes / MIB / facts.mib_per_second * 1000, 3),
        latency_ms=round(facts.latency_ms, 3),
        mib_per_second=round(facts.mib_per_second, 3),
        latency_from=facts.latency_from,
        rate_from=facts.rate_from,
        is_relayed=(source[0], target[0]) in ways.undialable,
    )


def sentence(choice: CutChoice, chain: Chain, *, is_fork: bool) -> str:
    """Why it is so, in one sentence."""
    shown = _shown(choice, choice.cost)
    alone = choice.alone
    if choice.is_split_refused:
        node = choice.slices[0].node
        if choice.best_split is None:
            why = "only one node may take it" if chain.nodes > 1 else "there is no other node"
            return f"whole on {node}, {shown}: {why}, or it cannot be cut"
        other = _shown(choice, choice.best_split)
        return f"whole on {node}, {shown}: splitting does not pay, the best split would be {other}"
    nodes = ", ".join(dict.fromkeys(each.node for each in choice.slices))
    what = f"{len(choice.slices)} slices on {nodes}"
    what += ", heads side by side" if is_fork else ""
    if alone is None:
        most = max(float(chain.room_mib.max()), 0.0)
        return (
            f"{what}, {shown}: no node by itself may and can hold the whole model "
            f"(the roomiest has {most:.0f} MiB)"
        )
    return f"{what}, {shown}: {_compared(choice, alone)}"


def _compared(choice: CutChoice, alone: NodeAlone) -> str:
    """A split against the best node by itself, in the terms of the objective."""
    single = f"the best single node, {alone.node} with {_shown(choice, alone.cost)}"
    match choice.objective:
        case "throughput" if choice.cost > 0:
            return f"{alone.cost / choice.cost:.1f} times the throughput of {single}"
        case "latency":
            return f"{choice.wins_by or 0.0:.0%} less time than {single}"
        case "energy":
            return f"{choice.wins_by or 0.0:.0%} less energy than {single}"
        case _:
            return f"better than {single}"


def _shown(choice: CutChoice, cost: float) -> str:
    match choice.objective:
        case "throughput":
            return f"{1000 / cost:.1f} answers a second" if cost > 0 else "any number of answers"
        case "bytes":
            return f"{cost:.0f} bytes between nodes"
        case _:
            return f"{cost:.1f} {choice.unit}"


def no_way(
    devices: Sequence[Device], chain: Chain, needed_mib: float, rules: Sequence[RangeRule]
) -> CannotPlace:
    """Why no way was found."""
    for rule in rules:
        if not any(rule.permits(each) for each in devices):
            wanted = [
                "trusted" if rule.is_sensitive else "",
                f"with backend {rule.backend}" if rule.backend is not None else "",
                "named by the strategy" if rule.allowed is not None else "",
                "not forbidden by it" if rule.forbidden else "",
            ]
            return CannotPlace(
                f"operators {rule.first} to {rule.last} need a node that is "
                f"{' and '.join(each for each in wanted if each)}, and none of {len(devices)} is",
                hint="`din node list` shows who is here; din node label NODE trust=high trusts one",
            )
    rooms = ", ".join(
        f"{each.name} {room:.0f}"
        for each, room in sorted(
            zip(devices, chain.room_mib.tolist(), strict=True), key=lambda pair: -pair[1]
        )[:4]
    )
    return CannotPlace(
        f"no way to spread the model over {chain.nodes} nodes: whole it needs {needed_mib:.0f} "
        f"MiB, in at most {chain.slices_max} slices each with {SLICE_BASE_MIB} MiB for its "
        f"worker; free MiB: {rooms or '-'}",
        hint="free memory, add a node, allow more slices, or take a quantised model",
    )
