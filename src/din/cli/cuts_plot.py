"""`din model inspect --plot`: what crosses each possible cut, over the time before it.

Needs matplotlib, which is loaded when it is called. The marked cuts carry numbers, and a list
beside the picture says what they are: names of operators are too long to stand at a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from din.cli.boundaries import Cut, size_words, times_words
from din.cli.display import byte_count, count
from din.domain.views import CutsView
from din.errors import UsageError

LISTED_MAX: Final = 14
"""Marked cuts that are numbered; those with the fewest bytes and the present ones come first."""
NAME_CHARS_MAX: Final = 30
POSSIBLE, BEST, PRESENT, INK = "#8aa0b4", "#c2410c", "#15803d", "#1e293b"


def draw_cuts(view: CutsView, cuts: Sequence[Cut], path: Path) -> None:
    """Write the picture. Raises UsageError."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    cuts = [each for each in cuts if each.is_known]
    figure, axes = pyplot.subplots(figsize=(12, 5.5), facecolor="white", layout="constrained")
    try:
        _draw_axes(axes, view)
        _draw_points(axes, cuts)
        _draw_list(axes, cuts)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.27), ncols=3, frameon=False)
        try:
            figure.savefig(path, dpi=120, facecolor="white")
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written: {error.strerror}", hint="name another file"
            ) from None
    finally:
        pyplot.close(figure)


def _draw_axes(axes: Any, view: CutsView) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    where = f" on {view.device}" if view.device else ""
    axes.set_title(
        f"{view.model_id} version {view.version}: what crosses a cut, by where it is",
        loc="left", color=INK, parse_math=False,
    )  # fmt: skip
    axes.set_xlabel(
        f"share of the operators' time before the cut, % ({times_words(view)}{where})",
        parse_math=False,
    )
    axes.set_ylabel("bytes that cross the cut for one request")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: byte_count(int(nbytes))))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(-2, 102)
    axes.margins(y=0.12)
    axes.grid(visible=True, color="#e2e8f0")
    axes.set_axisbelow(True)


def _draw_points(axes: Any, cuts: Sequence[Cut]) -> None:
    groups = (
        ("possible", [each for each in cuts if not each.is_best], POSSIBLE, ".", 5),
        ("best: no earlier cut has as few bytes", [e for e in cuts if e.is_best], BEST, "o", 7),
        ("cut here now", [each for each in cuts if each.is_present], PRESENT, "D", 7),
    )
    for label, chosen, colour, marker, size in groups:
        across = [each.share * 100 for each in chosen]
        axes.plot(across, [each.nbytes for each in chosen], linestyle="None", marker=marker,
                  color=colour, label=label, markersize=size)  # fmt: skip
    best = [each for each in cuts if each.is_best]
    axes.step([each.share * 100 for each in best], [each.nbytes for each in best],
              where="post", color=BEST, linewidth=1, alpha=0.5)  # fmt: skip


def _draw_list(axes: Any, cuts: Sequence[Cut]) -> None:
    """Numbers at the marked points, and beside them what each is."""
    marked = [each for each in cuts if each.is_best or each.is_present]
    kept = sorted(marked, key=lambda each: (not each.is_present, each.nbytes))[:LISTED_MAX]
    shown = [each for each in marked if each in kept]
    lines = ["after operator, time before, crossing"]
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=3, foreground="white")]
    above = False
    before = -100.0
    for number, cut in enumerate(shown, start=1):
        # Neighbours would be written over each other: they take turns above and below.
        above = not (above and cut.share * 100 - before < 4)
        before = cut.share * 100
        axes.annotate(
            str(number), (cut.share * 100, cut.nbytes), textcoords="offset points",
            xytext=(0, 8 if above else -16), ha="center", fontsize=9, color=INK, path_effects=halo,
        )  # fmt: skip
        mark = ", cut here now" if cut.is_present else ""
        lines.append(f"{number:>2}  {_short(cut.after)}, {cut.share:.1%}, {size_words(cut)}{mark}")
    if len(shown) < len(marked):
        lines.append(f"and {count(len(marked) - len(shown), 'more best cut')}")
    axes.text(1.02, 1.0, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=9,
              color=INK, linespacing=1.5, parse_math=False)  # fmt: skip


def _short(text: str) -> str:
    kept = "".join(each if each.isprintable() else "\ufffd" for each in text)
    half = NAME_CHARS_MAX // 2
    return kept if len(kept) <= NAME_CHARS_MAX else f"{kept[: half - 1]}…{kept[-half:]}"
