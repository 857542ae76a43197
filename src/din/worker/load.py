"""From an order to fork to a loaded, warm session: a model in its engine, or an adapter."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from msgspec import Struct

from din.backends.contract import EngineSession, Session
from din.backends.registry import import_backend
from din.domain.foreign import is_foreign
from din.domain.probe import PROBE
from din.domain.tensor import TensorSpec
from din.errors import BadModel, TooLarge, Unavailable
from din.wire.worker import Fork, Given, Loaded

MODEL_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024 - 1


class LoadedSession(Struct, frozen=True):
    """A session and what loading it took."""

    session: Session
    load_ms: float
    engine: str = ""


def load(order: Fork, artifacts: Sequence[int]) -> LoadedSession:
    """Load what the order names. Raises BadModel, UsageError, TooLarge, or Unavailable
    and MemoryError for what is this node's own trouble."""
    started = time.perf_counter()
    engine = ""
    if order.adapter is not None:
        from din.adapters.registry import load_adapter

        session: Session = load_adapter(order.adapter, order.inputs, order.outputs)
    elif order.backend == PROBE:
        session = load_probed(order, artifacts)
    elif is_foreign(order.backend):
        session = load_foreign(order)
    else:
        loaded = load_slice(order.backend, order.artifacts, artifacts, order.backend_options)
        session, engine = loaded, loaded.engine
        check_signature("input", order.inputs, session.inputs)
        check_signature("output", order.outputs, session.outputs)
    return LoadedSession(session, (time.perf_counter() - started) * 1000, engine)


def load_slice(
    backend: str,
    files: Sequence[Given],
    descriptors: Sequence[int],
    options: Mapping[str, str],
) -> EngineSession:
    """A session from the files of one slice, one descriptor each, which are closed.

    The model is read into memory, weights are mapped while the engine loads and no longer: no path
    is opened while a model is parsed. Raises as `load`.
    """
    models = [each for each, file in zip(descriptors, files, strict=True) if file.role == "model"]
    with ExitStack() as mappings:
        weights = {
            file.name: mappings.enter_context(mapped(descriptor))
            for descriptor, file in zip(descriptors, files, strict=True)
            if file.role == "weights"
        }
        if len(models) != 1 or len(models) + len(weights) != len(files):
            roles = ", ".join(file.role for file in files) or "none"
            raise BadModel(
                f"a slice is one model and its weights, the files given are: {roles}",
                hint="register the model again; gateway and node may be of two versions",
            )
        return import_backend(backend).load(read_whole(models[0]), options, weights)


def load_foreign(order: Fork) -> Session:
    """A model of a server behind this node. Raises Unavailable: another server may do."""
    from din.foreign.session import open_session

    session = open_session(order.backend_options)
    try:
        check_signature("input", order.inputs, session.inputs)
        check_signature("output", order.outputs, session.outputs)
    except BadModel as error:
        session.close()
        raise Unavailable(
            f"the model at the server is another one now: {error.message}",
            hint="register it again, or load the former one at the server",
        ) from None
    return session


def load_probed(order: Fork, descriptors: Sequence[int]) -> Session:
    """A probe over any number of models, all with the same weights, which stay mapped: it loads
    one model after the other. Raises as `load`."""
    from din.backends.probe import load_probe

    models: list[bytes] = []
    weights: dict[str, memoryview] = {}
    for descriptor, file in zip(descriptors, order.artifacts, strict=True):
        if file.role == "weights":
            weights[file.name] = memoryview(map_file(descriptor))
        else:
            models.append(read_whole(descriptor))
    return load_probe(models, weights, order.backend_options, order.inputs)


@contextmanager
def mapped(descriptor: int) -> Generator[memoryview]:
    """What a file holds, to be read in place; the descriptor is closed. Raises Unavailable."""
    with map_file(descriptor) as memory, memoryview(memory) as view:
        yield view


def map_file(descriptor: int) -> mmap.mmap:
    """A file in memory; the descriptor is closed. Raises Unavailable."""
    try:
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise Unavailable(f"the file of weights cannot be mapped: {error}") from error
    finally:
        os.close(descriptor)


def loaded_message(found: LoadedSession, warm_ms: float | None, memory_mib: int) -> Loaded:
    """What the owner is told."""
    session = found.session
    return Loaded(
        session.inputs, session.outputs, round(found.load_ms, 3), warm_ms, memory_mib, found.engine
    )


def warm(session: Session) -> float | None:
    """Milliseconds of one run on made-up input; None when the session took no such input."""
    started = time.perf_counter()
    if not session.warm():
        return None
    return round((time.perf_counter() - started) * 1000, 3)


def read_whole(descriptor: int) -> bytes:
    """All bytes of an artifact; the descriptor is closed. Raises TooLarge, Unavailable."""
    # One read takes all but the last page of the largest file: joining pieces would cost a copy.
    try:
        size = os.fstat(descriptor).st_size
        if size > MODEL_BYTES_MAX:
            raise TooLarge(
                f"the model file has {size} bytes", hint=f"at most {MODEL_BYTES_MAX} are possible"
            )
        parts: list[bytes] = []
        offset = 0
        while offset < size:
            part = os.pread(descriptor, size - offset, offset)
            if not part:
                raise Unavailable(f"the model file ended at {offset} of {size} bytes")
            parts.append(part)
            offset += len(part)
    except OSError as error:
        raise Unavailable(f"the model file cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return b"".join(parts)


def check_signature(
    side: str, declared: tuple[TensorSpec, ...], found: tuple[TensorSpec, ...]
) -> None:
    """Raises BadModel when the file's tensors are not those that the slice was registered with."""
    if not declared:
        return
    wanted = {spec.name: spec.dtype for spec in declared}
    actual = {spec.name: spec.dtype for spec in found}
    if wanted != actual:
        raise BadModel(
            f"the file's {side}s are {_listed(actual)}, but the slice has {_listed(wanted)}",
            hint="register the model again: file and slice do not belong together",
        )


def _listed(tensors: dict[str, str]) -> str:
    shown = [f"{name} {dtype}" for name, dtype in sorted(tensors.items())[:8]]
    return ", ".join(shown) + (", …" if len(tensors) > 8 else "") if shown else "none"
