"""Where a model could be cut, as people see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from din.cli.display import byte_count
from din.domain.views import CutsView

if TYPE_CHECKING:
    from din.placement.boundaries import Boundaries


class Cut(NamedTuple):
    """One boundary as people see it."""

    after: str
    """Name of the operator before it."""
    share: float
    """Of the device's time that lies before it, 0..1."""
    nbytes: int
    width: int
    is_exact: bool
    is_best: bool
    is_present: bool

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the size of what crosses."""
        return self.is_exact or self.nbytes > 0


def size_words(cut: Cut) -> str:
    """How much crosses, for people."""
    if not cut.is_known:
        return "not known"
    return byte_count(cut.nbytes) if cut.is_exact else f"about {byte_count(cut.nbytes)}"


def times_words(view: CutsView) -> str:
    """What the times rest on."""
    return "as measured" if view.times_from == "profile" else "estimated from work"


def cuts_of(view: CutsView) -> list[Cut]:
    """Every open boundary of the graph."""
    from din.placement.boundaries import best_cuts, boundaries_of

    bounds = boundaries_of(view.table)
    best = set(best_cuts(bounds))
    present = _present(view.assignment, bounds)
    total = sum(view.operator_ms) or 1.0
    cuts: list[Cut] = []
    spent = 0.0
    for place, operator in enumerate(view.table.operators[:-1], start=1):
        spent += view.operator_ms[place - 1]
        if bounds.is_open[place]:
            cuts.append(
                Cut(
                    operator.name,
                    spent / total,
                    int(bounds.nbytes[place]),
                    int(bounds.width[place]),
                    bool(bounds.is_exact[place]),
                    place in best,
                    place in present,
                )
            )
    return cuts


def _present(assignment: Sequence[int], bounds: Boundaries) -> set[int]:
    """Boundaries at which the model is cut now, as far as its slices follow each other."""
    size = len(bounds.table.operators)
    return {
        place
        for place in range(1, min(size, len(assignment)))
        if set(assignment[:place]).isdisjoint(assignment[place:])
    }
