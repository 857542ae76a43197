"""Why a node was not chosen: node by node, counted, and as the words of a refusal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from din.domain.backend_names import KNOWN_BACKENDS, backend_meant
from din.domain.model import Slice
from din.domain.node import SLICES_HELD_MAX, FleetNode, NodeId
from din.domain.numerics import Numerics
from din.domain.plan import REJECTION_EXAMPLES_MAX, Rejection, RejectionCount
from din.domain.support import (
    NEWEST_ONNXRUNTIME,
    Lack,
    is_known,
    lacks,
    told,
)
from din.errors import CannotPlace
from din.placement.capability import Flags, Wish, operators_wish, trust_wish, wish_of
from din.placement.constraints import device_type_differences as differences
from din.placement.constraints import may_take, nearest_device_type, passes, reject
from din.placement.policy import Constraint, Policy
from din.placement.score import Outlook
from din.placement.table import FleetTable, Rows, table_of

NODES_SHOWN_MAX: Final = 8
EXPECTED_MEANS: Final = "time of the slice there, measured or estimated, times queue, health, load"
REJECTIONS_MAX: Final = 10_000
"""Rejections in one explanation; a larger fleet is asked about with `rejection_counts`."""


def explain(
    part: Slice,
    fleet: FleetTable | Sequence[FleetNode],
    policy: Policy,
    *,
    chosen: Collection[NodeId] = (),
    excluded: Collection[NodeId] = (),
    outlook: Outlook | None = None,
    numerics: Numerics | None = None,
) -> tuple[Rejection, ...]:
    """One rejection for each constraint that a node fails; for a node that fails none and was not
    chosen, one that shows what is expected of it. `numerics`: how integers have to come out, where
    a replica stays. At most REJECTIONS_MAX."""
    table = table_of(fleet)
    outlook = outlook or Outlook(table, policy, None)
    found: list[Rejection] = []
    question = _Question(part, table, policy, chosen, excluded, outlook, numerics)
    for make, rows in _failures(question):
        found.extend(make(row) for row in rows.tolist()[: REJECTIONS_MAX - len(found)])
    return tuple(found)


def rejection_counts(
    slices: Sequence[Slice],
    fleet: FleetTable | Sequence[FleetNode],
    policy: Policy,
    *,
    chosen: Mapping[int, Collection[NodeId]] | None = None,
    excluded: Collection[NodeId] = (),
    outlook: Outlook | None = None,
    numerics: Mapping[int, Numerics | None] | None = None,
) -> tuple[RejectionCount, ...]:
    """Rejections of all slices, counted by constraint with a few examples each; `numerics` by
    slice, as for `explain`."""
    table = table_of(fleet)
    outlook = outlook or Outlook(table, policy, None)
    counts: dict[str, int] = {}
    examples: dict[str, list[Rejection]] = {}
    for part in slices:
        held = (chosen or {}).get(part.index, ())
        wanted = (numerics or {}).get(part.index)
        question = _Question(part, table, policy, held, excluded, outlook, wanted)
        for make, rows in _failures(question):
            if not len(rows):
                continue
            first = make(int(rows[0]))
            name = first.constraint
            counts[name] = counts.get(name, 0) + len(rows)
            kept = examples.setdefault(name, [])
            more = (make(row) for row in rows.tolist()[1 : REJECTION_EXAMPLES_MAX - len(kept)])
            kept.extend((first, *more) if len(kept) < REJECTION_EXAMPLES_MAX else ())
    return tuple(
        RejectionCount(constraint=name, count=count, examples=tuple(examples[name]))
        for name, count in counts.items()
    )


def cannot_place(
    slices: Sequence[Slice],
    fleet: FleetTable | Sequence[FleetNode],
    policy: Policy,
    *,
    excluded: Collection[NodeId] = (),
) -> CannotPlace:
    """The refusal for slices of which at least one has no node, or that do not fit together."""
    table = table_of(fleet)
    if not len(table):
        return CannotPlace(
            "no node has joined this cluster", hint="start one with `din node start`"
        )
    homeless = [part for part in slices if not _allowed(part, table, policy, excluded).any()]
    if not homeless:
        return _do_not_fit_together(slices, table)
    counts = rejection_counts(homeless, table, policy, excluded=excluded)
    lines = [_headline(homeless, table)]
    lines += [f"  {_line(each, len(slices) > 1)}" for each in counts]
    return CannotPlace("\n".join(lines), hint=_hint(homeless[0], table, counts))


class _Question(NamedTuple):
    """Why not the others, for one slice."""

    part: Slice
    table: FleetTable
    policy: Policy
    chosen: Collection[NodeId]
    excluded: Collection[NodeId]
    outlook: Outlook
    numerics: Numerics | None = None


_Finding = tuple[Callable[[int], Rejection], Rows]


def _failures(question: _Question) -> list[_Finding]:
    """For each constraint how to say it, and the rows that fail it."""
    part, table, policy, chosen, excluded, outlook, numerics = question
    used = np.zeros(table.size, dtype=np.bool_)
    used[table.rows()] = True
    used &= ~_flags_of(table, chosen)
    left_out = _flags_of(table, excluded)
    found: list[_Finding] = []
    if left_out.any():
        found.append((_left_out(part, table), np.flatnonzero(used & left_out)))
    used &= ~left_out
    fine = used.copy()
    for constraint in policy.constraints:
        failed = used & ~passes(table, part, constraint)
        if failed.any():
            found.append((_broken(part, table, constraint), np.flatnonzero(failed)))
            fine &= ~failed
    if numerics is not None:
        otherwise = fine & ~table.met_by(Wish(numerics=numerics))
        if otherwise.any():
            found.append((_otherwise(part, table, numerics), np.flatnonzero(otherwise)))
            fine &= ~otherwise
    worse = np.flatnonzero(fine)
    if len(worse) and chosen:
        found.append((_outscored(part, table, chosen, outlook), worse))
    return found


def _broken(part: Slice, table: FleetTable, constraint: Constraint) -> Callable[[int], Rejection]:
    return lambda row: reject(table, row, part, constraint)


def _left_out(part: Slice, table: FleetTable) -> Callable[[int], Rejection]:
    return lambda row: Rejection(
        slice_index=part.index,
        node_id=table.node_id(row),
        node=table.name(row),
        constraint="excluded",
        observed="failed to load it lately",
        required="to be asked again after a pause",
    )


def _otherwise(part: Slice, table: FleetTable, numerics: Numerics) -> Callable[[int], Rejection]:
    return lambda row: Rejection(
        slice_index=part.index,
        node_id=table.node_id(row),
        node=table.name(row),
        constraint="integers",
        observed=str(table.numerics(table.node_id(row), part) or ""),
        required=str(numerics),
        detail="replicas of a slice that computes in integers are on one kind of processor and "
        "engine, so that all answer alike",
    )


def _outscored(
    part: Slice, table: FleetTable, chosen: Collection[NodeId], outlook: Outlook
) -> Callable[[int], Rejection]:
    held = [table.row(each) for each in chosen if each in table]
    best = min((outlook.score(part, row) for row in held), default=0.0)

    def make(row: int) -> Rejection:
        mine = outlook.score(part, row)
        detail = EXPECTED_MEANS if mine > best else "as good by itself, worse for the whole plan"
        slowness = float(table.slowness[row])
        if slowness > 1.0:
            detail += f"; it runs at {100 / slowness:.0f} % (heat or supply)"
        return Rejection(
            slice_index=part.index,
            node_id=table.node_id(row),
            node=table.name(row),
            constraint="score",
            observed=f"expected {mine:.3f} ms",
            required=f"< {best:.3f} ms, the chosen" if mine > best else "less for the whole plan",
            detail=detail,
        )

    return make


def _flags_of(table: FleetTable, nodes: Collection[NodeId]) -> Flags:
    flags = np.zeros(table.size, dtype=np.bool_)
    for node_id in nodes:
        if node_id in table:
            flags[table.row(node_id)] = True
    return flags


def _allowed(part: Slice, table: FleetTable, policy: Policy, excluded: Collection[NodeId]) -> Flags:
    return may_take(table, part, policy) & ~_flags_of(table, excluded)


def _headline(homeless: Sequence[Slice], table: FleetTable) -> str:
    for part in homeless:
        backend = wish_of(part).backend
        if backend is not None and not table.met_by(Wish(backend=backend))[table.rows()].any():
            return f"no compatible device found for backend {backend}"
        if lack := _lack_everywhere(part, table):
            return told(lack)
    names = ", ".join(repr(part.name) for part in homeless[:REJECTION_EXAMPLES_MAX])
    more = f" and {len(homeless) - 4} more" if len(homeless) > REJECTION_EXAMPLES_MAX else ""
    plural = "s" if len(homeless) > 1 else ""
    return f"no node of {len(table)} can take slice{plural} {names}{more}"


def _lack_everywhere(part: Slice, table: FleetTable) -> Lack | None:
    """What every node with the backend of a slice lacks of it; None when one lacks nothing."""
    wish = operators_wish(part)
    if table.met_by(Wish(backend=wish.engine, needs=wish.needs, engine=wish.engine))[
        table.rows()
    ].any():
        return None
    engines = (each for kind in table.capabilities.kinds() for each in kind.engines)
    found = (next(lacks(part.needs, each), None) for each in engines if each.backend == wish.engine)
    return next((each for each in found if each is not None), None)


def _operators_hint(part: Slice, lack: Lack, table: FleetTable) -> str:
    """Which backends could: of the nodes here by name, and of which nothing is known."""
    asked = part.needs if lack.need is None else replace(part.needs, operators=(lack.need,))
    engines = sorted({each for kind in table.capabilities.kinds() for each in kind.engines})
    able = [str(each) for each in engines if is_known(each) and not any(lacks(asked, each))]
    unknown = [str(each) for each in engines if not is_known(each)]
    if not able and lack.need is not None:
        newest = NEWEST_ONNXRUNTIME
        able = [] if any(lacks(asked, newest)) else [f"{newest}, which no node has"]
    words = f"could run it: {', '.join(able)}" if able else "no backend here is known to run it"
    if unknown:
        words += f"; not known of {', '.join(unknown)}"
    rewrite = ""
    if lack.need is not None and ("coordinate_transformation_mode", "half_pixel") in (
        lack.need.attributes
    ):
        rewrite = (
            '; "rewrite": ["resize_half_pixel_to_asymmetric"] in the strategy changes the operator '
            "and the numbers"
        )
    return f"{words}; name another backend in `backend_map`, or start a node that can{rewrite}"


def _line(count: RejectionCount, is_slice_named: bool) -> str:
    alike: dict[tuple[int, str, str, str], list[Rejection]] = {}
    for each in count.examples:
        key = (each.slice_index, each.observed, each.required, each.detail)
        alike.setdefault(key, []).append(each)
    shown = "; ".join(_example(group, is_slice_named) for group in alike.values())
    more = " ..." if count.count > len(count.examples) else ""
    return f"{count.constraint} ({count.count}): {shown}{more}"


def _example(alike: Sequence[Rejection], is_slice_named: bool) -> str:
    """Nodes that lack the same thing, in one breath."""
    first, is_one = alike[0], len(alike) == 1
    slice_words = f"slice {first.slice_index}: " if is_slice_named else ""
    nodes = ", ".join(each.node for each in alike)
    if first.constraint == "nodes":
        return f"{slice_words}{nodes}: {first.required}"
    verb = (
        ("is" if is_one else "are") if first.constraint == "status" else "has" if is_one else "have"
    )
    needs = "needs" if is_one else "need"
    detail = f" ({first.detail})" if first.detail else ""
    return f"{slice_words}{nodes} {verb} {first.observed}, {needs} {first.required}{detail}"


def _do_not_fit_together(slices: Sequence[Slice], table: FleetTable) -> CannotPlace:
    needed = sum(part.memory_mib for part in slices)
    room = float(table.memory_mib_room[table.rows()].clip(min=0).sum())
    slots = table.slots()[table.rows()].clip(min=0)
    limit = ""
    if int(slots.min()) < len(slices):
        more = int(slots.sum())
        limit = f", with room for {more} more by the limit of {SLICES_HELD_MAX} slices a node"
    return CannotPlace(
        f"each slice fits some node, but not all {len(slices)} together: they need {needed} MiB "
        f"and {len(table)} nodes have {room:.0f} MiB free and not reserved{limit}",
        hint="add a node, unload a model with `din model remove`, or cut into smaller slices",
    )


def _hint(part: Slice, table: FleetTable, counts: Sequence[RejectionCount]) -> str:
    names = {each.constraint for each in counts}
    ready = table.eligible(Wish())
    if not ready.any():
        return "no node is ready; `din node list` shows why each is not"
    if not table.met_by(Wish(backend=wish_of(part).backend))[table.rows()].any():
        offered = sorted({each for kind in table.capabilities.kinds() for each in kind.backends})
        known = KNOWN_BACKENDS.union(offered)
        meant = None if part.backend in known else backend_meant(part.backend, known)
        return (f"did you mean {meant!r}? " if meant else "") + (
            f"the nodes offer {', '.join(offered) or 'no backend'}; name one of these in "
            f"`backend_map`, or start a node that has {part.backend}"
        )
    if lack := _lack_everywhere(part, table):
        return _operators_hint(part, lack, table)
    if part.nodes and not table.named(frozenset(part.nodes))[table.rows()].any():
        known = (table.name(row) for row in table.rows().tolist())
        return (
            f"slice {part.name!r} is pinned to {', '.join(part.nodes)}, which has not joined; "
            f"the nodes here are {', '.join(sorted(known)[:NODES_SHOWN_MAX])}"
        )
    if "device_type" in names and part.device_type is not None:
        words = _device_type_hint(part.device_type, table)
        if words:
            return words
    return _limit_hint(part, table, names)


def _device_type_hint(wanted: str, table: FleetTable) -> str:
    offered = {kind.device_type for kind in table.capabilities.kinds()}
    if wanted in offered:
        return ""
    nearest = nearest_device_type(wanted, offered)
    if nearest is None:
        return ""
    row = next(
        row for row in table.rows().tolist() if table.node(row).profile.device_type == nearest
    )
    parts = "; ".join(differences(wanted, nearest))
    return f"the nearest is {table.name(row)} ({nearest}): {parts}"


def _limit_hint(part: Slice, table: FleetTable, names: set[str]) -> str:
    rows = table.rows()
    if words := _trust_hint(part, table, rows):
        return words
    if "memory" in names:
        room = table.memory_mib_room[rows]
        roomiest = int(rows[int(room.argmax())])
        return (
            f"slice {part.name!r} needs {part.memory_mib} MiB and the roomiest node, "
            f"{table.name(roomiest)}, has {max(float(room.max()), 0):.0f}; cut the model into "
            "smaller slices or add a node"
        )
    if "slices" in names:
        return (
            f"a node holds at most {SLICES_HELD_MAX} slices: remove models that nobody uses, or "
            "add a node"
        )
    if "labels" in names:
        wanted = ", ".join(f"{key}={value}" for key, value in part.labels.items())
        return f"give a node the labels {wanted}, or take them out of the strategy"
    if "compression" in names:
        return "upgrade DIN on the nodes, or take the compression out of the strategy"
    if "temperature" in names:
        return "wait until a node has cooled down; `din node list` shows temperatures"
    return "`din node list -o wide` shows status, health and load of every node"


def _trust_hint(part: Slice, table: FleetTable, rows: Rows) -> str:
    if not table.met_by(Wish(labels=trust_wish(part)))[rows].any():
        return (
            f"slice {part.name!r} is sensitive: give a machine that you trust the label, by "
            "`din node label NODE trust=high` or by its join token"
        )
    if not table.met_by(Wish(is_sealed=part.is_sealed))[rows].any():
        return (
            f"slice {part.name!r} is sealed: join machines with a token (`din token create`), or "
            "register the model with --no-encrypt"
        )
    return ""
