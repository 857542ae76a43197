"""Slices of a model, what crosses between them, and why it was cut so, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from din.cli.display import UNKNOWN, Column, byte_count, count, mebibytes, show_table
from din.cli.frame import say
from din.domain.cuts import CutChoice, ways_of_choice
from din.domain.model import CutFacts
from din.domain.views import ModelView, ReplicaView, SliceView


def _nodes(part: SliceView) -> str:
    return ", ".join(_replica(each) for each in part.replicas) or UNKNOWN


def _replica(replica: ReplicaView) -> str:
    if replica.state == "ready":
        taken = f" ({mebibytes(replica.memory_mib)})" if replica.memory_mib is not None else ""
        return replica.node + taken
    state = "loading" if replica.state == "assigned" else replica.state
    return f"{replica.node} ({state})"


SLICE_COLUMNS: Final[tuple[Column[SliceView], ...]] = (
    Column("SLICE", lambda part: str(part.index), is_number=True),
    Column("NAME", lambda part: part.name),
    Column("KIND", lambda part: part.kind),
    Column("OPERATORS", lambda part: str(part.operators), is_number=True),
    Column("WEIGHTS", lambda part: byte_count(part.bytes_weights), is_number=True),
    Column("MEMORY", lambda part: mebibytes(part.memory_mib), is_number=True),
    Column("DEVICE TYPE", lambda part: part.device_type or "any"),
    Column("NODES", _nodes),
    Column("TRUST", lambda part: "high only" if part.is_sensitive else "any", is_wide=True),
    Column("SEALED", lambda part: "yes" if part.is_sealed else "no", is_wide=True),
    Column("SLICE ID", lambda part: part.slice_id[:16], is_wide=True),
)


def show_slices(view: ModelView, *, is_wide: bool) -> None:
    """The slices as a table, and why nodes could not load some."""
    show_table([each for each in SLICE_COLUMNS if is_wide or not each.is_wide], view.slices)
    for part in view.slices:
        for each in part.replicas:
            if each.state == "failed" and each.reason:
                say(f"slice {part.name} on {each.node} failed: {each.reason}")


def cut_lines(cuts: Sequence[CutFacts]) -> list[str]:
    """What goes over each cut for each request."""
    return [f"after slice {cut.after_slice}: {_crossing(cut)}" for cut in cuts]


def _crossing(cut: CutFacts) -> str:
    if not cut.tensors:
        return "nothing crosses"
    size = _size(cut.nbytes)
    if _is_encoded(cut):
        size += f" instead of {_size(cut.nbytes_exact)}"
    return f"{', '.join(cut.tensors)} {'crosses' if len(cut.tensors) == 1 else 'cross'} ({size})"


def _size(nbytes: int | None) -> str:
    return "size depends on the input" if nbytes is None else byte_count(nbytes)


def choice_lines(choice: CutChoice) -> list[str]:
    """Why DIN cut it so, with the numbers."""
    lines = [f"{choice.objective}: {choice.reason}"]
    for part in choice.slices:
        guess = "" if part.is_exact else "about "
        crossing = f", {guess}{byte_count(part.crossing_bytes)} on" if part.crossing_bytes else ""
        trust = ", trusted nodes only" if part.is_sensitive else ""
        lines.append(
            f"{part.node}: {count(part.operators, 'operator')} from {part.first} to {part.last}, "
            f"{part.compute_ms:.1f} ms, {mebibytes(part.memory_mib)}{crossing}{trust}"
        )
    return [*lines, *ways_of_choice(choice), *choice.notes]


def _is_encoded(cut: CutFacts) -> bool:
    return cut.nbytes_exact is not None and cut.nbytes != cut.nbytes_exact
