"""Words and numbers for a choice of cuts: what each slice is, why it was chosen, why it was not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from din.domain.cuts import ChosenSlice, CutChoice, CutWay, NodeAlone
from din.domain.estimates import MIB, SLICE_BASE_MIB, memory_mib
from din.domain.node import NodeId
from din.errors import CannotPlace
from din.placement.boundaries import Boundaries
from din.placement.chain import Chain, Matrix, Numbers, Way, runs_of
from din.placement.places import CutWishes, Device, RangeRule
from din.placement.ways import HERE, Ways

GATEWAY_NAME: Final = "gateway"


def described(
    bounds: Boundaries,
    wishes: CutWishes,
    devices: Sequence[Device],
    times: Sequence[Matrix],
    assignment: Numbers,
    nodes: Sequence[int],
) -> tuple[ChosenSlice, ...]:
    """Each slice with its node and its numbers. `times`: of all operators, on each slice's node."""
    table = bounds.table
    shared = [0] * len(nodes)
    for each in table.shared:
        for number in set(assignment[list(each.readers)].tolist()):
            shared[number] += each.nbytes
    private: set[int] = set()
    for rule in wishes.rules:
        if rule.is_sensitive:
            private.update(assignment[rule.first : rule.last + 1].tolist())
    crossing = bounds.reads.across(assignment)
    leaving = np.zeros(len(nodes), dtype=np.int64)
    np.add.at(leaving, crossing.maker, crossing.nbytes)
    guessed = set(crossing.maker[~crossing.is_exact].tolist())
    found: list[ChosenSlice] = []
    for number, node in enumerate(nodes):
        places = np.flatnonzero(assignment == number)
        weights = int(bounds.own_bytes[places].sum()) + shared[number]
        found.append(
            ChosenSlice(
                first=table.operators[int(places[0])].name if len(places) else "",
                last=table.operators[int(places[-1])].name if len(places) else "",
                operators=len(places),
                node_id=devices[node].node_id,
                node=devices[node].name,
                compute_ms=round(float(times[number][places].sum()), 3),
                memory_mib=memory_mib(weights, int(bounds.live_bytes[places].max(initial=0))),
                is_sensitive=number in private,
                crossing_bytes=int(leaving[number]),
                is_exact=number not in guessed,
            )
        )
    return tuple(found)


def best_split(chain: Chain, way: Way, *, is_pipeline: bool) -> Way | None:
    """The best split that was not worth it: what was found, else the best single cut."""
    if len(runs_of(way.nodes)) > 1:
        return way
    if chain.nodes < 2 or chain.blocks < 2 or chain.slices_max < 2:
        return None
    before = np.cumsum(chain.cost, axis=0)[:-1]
    after = np.cumsum(chain.cost[::-1], axis=0)[::-1][1:]
    if not is_pipeline:
        before, after = before + chain.enter, after + chain.leave
    join = np.maximum if is_pipeline else np.add
    itself = np.diag(np.full(chain.nodes, np.inf))
    hop, per_byte = chain.hop + itself, chain.per_byte
    step_min = hop.min() + (per_byte + itself).min() * chain.crossing
    least = join(join(before.min(axis=1), after.min(axis=1)), step_min)
    best = Way((), np.inf, is_exact=True)
    for edge in np.argsort(least).tolist():
        if not least[edge] < best.cost:
            break  # nor is any that follows
        total = join(before[edge][:, None], after[edge])
        total = join(total, hop + per_byte * chain.crossing[edge])
        if is_pipeline:
            total = np.maximum(total, np.maximum(chain.enter[:, None], chain.leave))
            if chain.shares is not None:
                held = np.where(np.isfinite(after[edge]), after[edge], 0.0)
                first = np.diag(chain.shares) * before[edge]
                total = np.maximum(total, first[:, None] + chain.shares * held)
        one, other = divmod(int(total.argmin()), chain.nodes)
        if total[one, other] < best.cost:
            nodes = (one,) * (edge + 1) + (other,) * (chain.blocks - edge - 1)
            best = Way(nodes, float(total[one, other]), is_exact=True)
    return best if best.nodes else None


def told_ways(
    bounds: Boundaries,
    devices: Sequence[tuple[NodeId, str]],
    ways: Ways,
    assignment: Numbers,
    nodes: Sequence[int],
) -> tuple[CutWay, ...]:
    """Over which ways tensors go, as they are reckoned with; those from slice to slice first.
    `devices`: id and name, `nodes`: of which each slice is."""
    crossing = bounds.reads.across(assignment)
    between: dict[tuple[int, int], int] = defaultdict(int)
    for maker, reader, nbytes in zip(
        crossing.maker.tolist(), crossing.reader.tolist(), crossing.nbytes.tolist(), strict=True
    ):
        if nodes[maker] != nodes[reader]:
            between[nodes[maker], nodes[reader]] += nbytes
    given: dict[int, int] = defaultdict(int)
    for value in bounds.inputs:
        for node in {nodes[assignment[reader]] for reader in value.readers}:
            given[node] += value.nbytes
    taken: dict[int, int] = defaultdict(int)
    for value in bounds.outputs:
        if value.maker >= 0:
            taken[nodes[assignment[value.maker]]] += value.nbytes
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
