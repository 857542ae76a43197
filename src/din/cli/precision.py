"""What people see of how tensors cross between slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from din.cli.display import byte_count
from din.domain.encoding import EncodedTensor, OutputLoss, PrecisionCheck

LINES_MAX: Final = 8
"""Of tensors, and of outputs; JSON has all."""


def precision_lines(check: PrecisionCheck | None) -> Iterator[str]:
    """The choice with its reason, each tensor, what each output lost, and doubts."""
    if check is None:
        return
    yield f"{check.kind} ({check.asked} was asked for): {check.reason}"
    yield from _some([_tensor(each) for each in check.tensors], "tensors")
    if check.outputs:
        yield (
            f"checked on {check.node} with {check.samples} samples ({check.samples_from}), "
            f"{check.checked_at}:"
        )
        yield from _some([_output(each) for each in check.outputs], "outputs")
    yield from (f"doubtful: {each}" for each in check.warnings)


def _some(lines: list[str], what: str) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:LINES_MAX])
    if len(lines) > LINES_MAX:
        yield f"  and {len(lines) - LINES_MAX} more {what}: see -o json"


def _tensor(each: EncodedTensor) -> str:
    sizes = ""
    if each.nbytes is not None and each.nbytes_exact is not None:
        sizes = f", {byte_count(each.nbytes)}"
        if each.nbytes != each.nbytes_exact:
            sizes += f" instead of {byte_count(each.nbytes_exact)}"
    channels = f" by {each.channels} channels" if each.channels else ""
    reason = f": {each.reason}" if each.reason else ""
    return f"{each.tensor} crosses as {each.kind}{channels}{sizes}{reason}"


def _output(each: OutputLoss) -> str:
    if each.loss is None:
        return f"{each.name}: {each.trouble}"
    return (
        f"{each.name}: off by up to {each.max_absolute:.3g}, which is {each.loss:.2%} of its "
        f"largest magnitude; {each.mean_absolute:.3g} on average"
    )
