"""What people see of how tensors cross between slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from din.cli.display import byte_count
from din.domain.encoding import EncodedTensor, OutputLoss, PrecisionCheck, RewriteCheck

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
            f"calibrated on {_samples(check.samples, check.samples_from)} and checked on "
            f"{check.samples_checked or check.samples}, on {check.node}, {check.checked_at}:"
        )
        yield from _some([_output(each) for each in check.outputs], "outputs")
    yield from (f"doubtful: {each}" for each in check.warnings)


def rewrite_lines(check: RewriteCheck | None) -> Iterator[str]:
    """By how much rewrites change what a model computes, output by output."""
    if check is None:
        return
    names = ", ".join(check.rewrites)
    if check.reason:
        yield f"rewrite {names} changes the numbers; by how much is not known: {check.reason}"
        return
    yield (
        f"rewrite {names} against the model as it was given, with "
        f"{_samples(check.samples, check.samples_from)} on {check.node}, {check.checked_at}:"
    )
    yield from _some([_output(each) for each in check.outputs], "outputs")


def _samples(count: int, origin: str) -> str:
    whose = "given" if origin == "given" else "made-up"
    return f"{count} {whose} sample" + ("" if count == 1 else "s")


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
    if not reason and each.mib_per_second is not None:
        reason = f": its way carries {each.mib_per_second:.4g} MiB/s ({each.way})"
    return f"{each.tensor} crosses as {each.kind}{channels}{sizes}{reason}"


def _output(each: OutputLoss) -> str:
    if each.loss is None:
        return f"{each.name}: {each.trouble}"
    return (
        f"{each.name}: off by up to {each.max_absolute:.3g}, which is {each.loss:.2%} of its "
        f"largest magnitude; {each.mean_absolute:.3g} on average"
    )
