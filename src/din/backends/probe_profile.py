"""Times and sizes of a whole model's operators.

Times of single operators can only be had without optimisation, where nodes keep their names; how
long the model takes can only be had with it. So the first give the shares and the second the whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Final

from din.backends.contract import Array
from din.backends.graph_wire import GraphNode, nodes_of
from din.backends.onnxruntime_backend import OnnxSession
from din.backends.probe_models import Models, engine_words
from din.backends.probe_numbers import NUMPY_TYPES, facts_of
from din.backends.probe_trace import DTYPES, Measured, medians, read_rounds
from din.domain.probe import ROUNDS_MAX, OperatorTime, ProbeOrder, ProfileReport, TensorFacts
from din.domain.tensor import BYTES, nbytes_of
from din.errors import BadModel, BadTensor, ExecutionFailed, Unavailable

EVENTS_MAX: Final = 100_000
"""Of one profile, which is a file of up to a kilobyte each: fewer rounds of a larger graph."""
OPERATORS_MAX: Final = 20_000
OUTPUTS_AT_ONCE: Final = 32


def profile(models: Models, order: ProbeOrder, given: Mapping[str, Array]) -> ProfileReport:
    """Run the whole in rounds at both levels. Raises BadTensor, BadModel, ExecutionFailed,
    and Unavailable where no file may be written."""
    nodes = nodes_of(models.model(0))
    if len(nodes) > OPERATORS_MAX:
        raise BadModel(
            f"the model has {len(nodes)} operators, over {OPERATORS_MAX}",
            hint="times of single operators are measured for smaller graphs only",
        )
    optimised = models.open(0, models.optimisation, is_timed=True)
    inputs = models.inputs_for(optimised, order, given)
    facts = models.facts(optimised, inputs)
    whole_ms = median(_timed(models, optimised, inputs, order))
    measured, rounds = _measured(models, order, inputs, len(nodes))
    sizes, notes = _missing_sizes(models, nodes, measured, inputs)
    return ProfileReport(
        inputs=facts,
        operators=_operators(nodes, measured, whole_ms, sizes),
        whole_ms=whole_ms,
        plain_ms=sum(each.us for each in measured.values()) / 1000,
        rounds=rounds,
        coverage=_coverage(nodes, measured),
        engine=engine_words(),
        notes=notes,
    )


def _timed(
    models: Models, session: OnnxSession, inputs: Mapping[str, Array], order: ProbeOrder
) -> list[float]:
    """Milliseconds of up to `rounds` runs; the inputs were found by one, so it is warm."""
    times: list[float] = []
    began = time.perf_counter()
    for _ in range(min(max(order.rounds, 1), ROUNDS_MAX)):
        started = time.perf_counter()
        models.run(session, inputs)
        ended = time.perf_counter()
        times.append((ended - started) * 1000)
        if (ended - began) * 1000 > order.milliseconds_max:
            break
    return times


def _measured(
    models: Models, order: ProbeOrder, inputs: Mapping[str, Array], nodes: int
) -> tuple[dict[str, Measured], int]:
    """Times by operator, and in how many rounds; the first round only warms."""
    rounds = min(max(order.rounds, 1), ROUNDS_MAX, max(EVENTS_MAX // (nodes + 1), 1))
    folder = _new_folder()
    try:
        session = models.open(0, "off", profile_prefix=str(folder / "profile"), is_timed=True)
        descriptor = _only_file(folder)
    finally:
        # The engine and we hold the file open: nothing stays behind, however this process ends.
        shutil.rmtree(folder, ignore_errors=True)
    try:
        began = time.perf_counter()
        for count in range(rounds + 1):
            models.run(session, inputs)
            if count and (time.perf_counter() - began) * 1000 > order.milliseconds_max:
                break
        session.end_profiling()
        data = _whole(descriptor)
    finally:
        os.close(descriptor)
    found = read_rounds(data)
    if len(found) < 2:
        raise ExecutionFailed(f"the engine's profile tells of {len(found)} runs")
    return medians(found[1:]), len(found) - 1


def _new_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="din-probe-"))
    except OSError as error:
        raise Unavailable(
            "operators cannot be timed on this node: the engine tells their times in a file, and a "
            f"worker may write none here ({error.strerror}); `din doctor` on it says why",
        ) from error


def _only_file(folder: Path) -> int:
    paths = list(folder.iterdir())
    if len(paths) != 1:
        raise ExecutionFailed(
            f"the engine wrote {len(paths)} files of its profile",
            hint="the temporary folder of the node may be full or not writable",
        )
    return os.open(paths[0], os.O_RDONLY | os.O_CLOEXEC)


def _whole(descriptor: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while part := os.pread(descriptor, 1 << 24, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _coverage(nodes: Sequence[GraphNode], measured: Mapping[str, Measured]) -> float:
    running = [each for each in nodes if each.kind != "Constant"]
    return sum(each.name in measured for each in running) / len(running) if running else 1.0


def _operators(
    nodes: Sequence[GraphNode],
    measured: Mapping[str, Measured],
    whole_ms: float,
    sizes: Mapping[str, TensorFacts],
) -> tuple[OperatorTime, ...]:
    """Shares of the whole. What the engine measured under names that the model has not goes to the
    operators it took apart, in equal parts, or where there are none to all alike."""
    names = {each.name for each in nodes}
    own = {name: each.us for name, each in measured.items() if name in names}
    rest = sum(each.us for name, each in measured.items() if name not in names)
    apart = [each.name for each in nodes if each.name not in own and each.kind != "Constant"]
    estimated = {name: rest / len(apart) for name in apart}
    total = sum(own.values()) + sum(estimated.values())
    scale = whole_ms / total if total else 0.0
    return tuple(
        OperatorTime(
            name=each.name,
            kind=each.kind,
            ms=(own.get(each.name, 0.0) + estimated.get(each.name, 0.0)) * scale,
            outputs=_outputs(each, measured.get(each.name), sizes),
            is_estimated=each.name in estimated,
        )
        for each in nodes
    )


def _outputs(
    node: GraphNode, measured: Measured | None, sizes: Mapping[str, TensorFacts]
) -> tuple[TensorFacts, ...]:
    made = [name for name in node.outputs if name]
    if measured is None or len(measured.outputs) != len(made):
        return tuple(sizes[name] for name in made if name in sizes)
    return tuple(
        _fact(name, kind, shape) for name, (kind, shape) in zip(made, measured.outputs, strict=True)
    )


def _fact(name: str, kind: str, shape: tuple[int, ...]) -> TensorFacts:
    dtype = DTYPES.get(kind, kind)
    is_fixed = dtype in NUMPY_TYPES and dtype != BYTES
    return TensorFacts(name, dtype, shape, nbytes_of(dtype, shape) if is_fixed else None)


def _missing_sizes(
    models: Models,
    nodes: Sequence[GraphNode],
    measured: Mapping[str, Measured],
    inputs: Mapping[str, Array],
) -> tuple[dict[str, TensorFacts], tuple[str, ...]]:
    """Sizes of what the profile does not tell, by runs that give these values as outputs."""
    missing: list[str] = []
    for each in nodes:
        made = [name for name in each.outputs if name]
        known = measured.get(each.name)
        if each.kind != "Constant" and (known is None or len(known.outputs) != len(made)):
            missing.extend(made)
    sizes: dict[str, TensorFacts] = {}
    unknown = 0
    for first in range(0, len(missing), OUTPUTS_AT_ONCE):
        group = missing[first : first + OUTPUTS_AT_ONCE]
        try:
            sizes |= _sizes(models, group, inputs)
        except (BadModel, BadTensor):  # one of them is no tensor: each by itself then
            for name in group:
                before = len(sizes)
                with suppress(BadModel, BadTensor):
                    sizes |= _sizes(models, [name], inputs)
                unknown += len(sizes) == before
    notes = (f"{unknown} values are no tensors and have no size",) if unknown else ()
    return sizes, notes


def _sizes(
    models: Models, names: Sequence[str], inputs: Mapping[str, Array]
) -> dict[str, TensorFacts]:
    session = models.open(0, "off", more_outputs=names)
    dtypes = {spec.name: spec.dtype for spec in session.outputs}
    made = models.run(session, inputs, names)
    return {name: facts_of(name, dtypes[name], made[name]) for name in names}
