"""Holds a frame against the slice that it is for. Everything in a frame is somebody else's word."""

from __future__ import annotations

from din.domain.model import GATEWAY
from din.domain.tensor import RANK_MAX, TensorMeta, check_tensor, is_sized, offsets_of
from din.errors import BadTensor, DeadlineExceeded, DinError, SpoiledTensor, Unavailable
from din.execution.events import SliceKey
from din.execution.loaded import LoadedSlice
from din.wire.messages import Run


def check_address(run: Run, node_id: str) -> None:
    """Raises Unavailable when the frame is for another node, BadTensor when it is malformed, and
    DeadlineExceeded when it came too late."""
    if not 0 <= run.slice_index < len(run.route.nodes):
        raise BadTensor(
            f"a frame is for slice {run.slice_index} but its route has {len(run.route.nodes)}"
        )
    meant_for = run.route.nodes[run.slice_index]
    if meant_for != node_id:
        raise Unavailable(
            f"this is node {node_id}, but the route has slice {run.slice_index} on "
            f"{meant_for or 'no node'}"
        )
    if run.remaining_ms <= 0:
        raise DeadlineExceeded("the deadline passed before the inputs arrived")


def find_slice(run: Run, known: dict[SliceKey, LoadedSlice]) -> LoadedSlice:
    """The loaded slice of a frame. Raises Unavailable naming epoch and slice."""
    loaded = known.get((run.route.epoch, run.slice_index))
    epoch = run.route.epoch
    if loaded is None:
        raise Unavailable(
            f"slice {run.slice_index} of deployment {epoch.deployment}.{epoch.revision} is not "
            "loaded here"
        )
    if not loaded.way(run.route).is_fitting:
        raise BadTensor(
            f"the route of {len(run.route.nodes)} slices does not fit deployment "
            f"{epoch.deployment}.{epoch.revision}"
        )
    return loaded


def check_tensors(run: Run, loaded: LoadedSlice, symbols: dict[str, int], nbytes: int) -> None:
    """Raises BadTensor naming the tensor and what was expected; `symbols` collects bound sizes."""
    awaited = loaded.way(run.route).awaited
    seen: set[str] = set()
    for meta in run.tensors:
        if meta.name in seen or (run.producer, meta.name) not in awaited:
            raise _unexpected(run, meta.name, awaited)
        seen.add(meta.name)
        if run.producer != GATEWAY and not is_sized(meta):
            raise _spoiled(meta)
        if meta.nbytes < 0 or len(meta.shape) > RANK_MAX:
            raise BadTensor(
                f"input {meta.name!r} has {meta.nbytes} bytes and {len(meta.shape)} dims",
                hint=f"bytes are not negative, dims are at most {RANK_MAX}",
            )
        spec = loaded.inputs.get(meta.name)
        if spec is not None:
            check_tensor(spec, meta, symbols)
    _, total = offsets_of(run.tensors)
    if total != nbytes:
        raise BadTensor(
            f"a frame for slice {run.slice_index} has {nbytes} bytes but its tensors need {total}"
        )


def culprit(run: Run, error: DinError, blamed: str, loaded: LoadedSlice | None) -> tuple[int, str]:
    """Slice and node that a failure is told of: for what was spoiled the producer, else the slice
    of the frame and who is blamed already."""
    if isinstance(error, SpoiledTensor) and loaded is not None:
        for producer, tensor in loaded.way(run.route).awaited:
            if tensor == error.tensor and producer != GATEWAY:
                return producer, run.route.nodes[producer]
    return run.slice_index, blamed


def is_retryable(error: DinError) -> bool:
    """Whether another node, or the same one later, might answer; see the tree in `din.errors`."""
    return isinstance(error, Unavailable) or error.code == "DIN-900"


def _spoiled(meta: TensorMeta) -> SpoiledTensor:
    how = f", compressed as {meta.compression!r:.40}" if meta.compression else ""
    return SpoiledTensor(
        f"tensor {meta.name!r} {meta.dtype:.40} {list(meta.shape[:RANK_MAX])} was sent in "
        f"{meta.nbytes} bytes{how}, which cannot be",
        hint="the node that made it may be of another version of DIN, or broken",
        tensor=meta.name,
    )


def _unexpected(run: Run, name: str, awaited: frozenset[tuple[int, str]]) -> BadTensor:
    who = "the gateway" if run.producer == GATEWAY else f"slice {run.producer}"
    expected = sorted(tensor for producer, tensor in awaited if producer == run.producer)
    return BadTensor(
        f"slice {run.slice_index} takes no tensor {name!r} from {who}",
        hint=f"it takes {', '.join(expected) or 'nothing'}, each once",
    )
