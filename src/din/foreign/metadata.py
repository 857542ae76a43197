"""What servers say of themselves, as DIN's words. Everything here came over a wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from din.domain.foreign import MODEL_NAME_MAX, MODEL_TENSORS_MAX, MODELS_MAX, ForeignModel
from din.domain.malformed import MALFORMED
from din.domain.tensor import BYTES, DTYPE_BYTES, RANK_MAX, Dim, TensorSpec
from din.errors import Unavailable
from din.observability.printable import one_line

TEXT_MAX: Final = 64
TENSOR_NAME_MAX: Final = 256
SAID_MAX: Final = 500
BINARY: Final = "binary_tensor_data"

LIVE_PATH: Final = "/v2/health/live"
SERVER_PATH: Final = "/v2"
INDEX_PATH: Final = "/v2/repository/index"

_Answer = TypeVar("_Answer")


class ServerSaid(Struct):
    """GET /v2."""

    name: str = ""
    version: str = ""
    extensions: list[str] = []


class TensorSaid(Struct):
    """One tensor of GET /v2/models/M."""

    name: str
    datatype: str
    shape: list[Any] = []


class ModelSaid(Struct):
    """GET /v2/models/M."""

    inputs: list[TensorSaid] | None = None
    outputs: list[TensorSaid] | None = None


class EntrySaid(Struct):
    """One entry of POST /v2/repository/index."""

    name: str


class _ErrorSaid(Struct):
    error: Any = None
    detail: Any = None


def model_path(name: str, end: str = "") -> str:
    """The path of a model, or what lies below."""
    return f"/v2/models/{quote(name, safe='')}{end}"


def read_server(body: bytes) -> ServerSaid:
    """Who it is. Raises Unavailable."""
    found = _decoded(body, ServerSaid, "GET /v2")
    return ServerSaid(
        one_line(found.name, TEXT_MAX), one_line(found.version, TEXT_MAX), found.extensions
    )


def read_index(body: bytes) -> tuple[str, ...]:
    """Names of the models in its repository; names that DIN cannot write are left out.

    Raises Unavailable.
    """
    entries = _decoded(body, list[EntrySaid], "POST /v2/repository/index")
    names = dict.fromkeys(each.name for each in entries if is_name(each.name))
    return tuple(names)[:MODELS_MAX]


def read_model(name: str, body: bytes) -> ForeignModel:
    """A model's signature; one that DIN cannot use says why. Raises Unavailable."""
    found = _decoded(body, ModelSaid, f"GET {model_path(name)}")
    if not found.inputs or not found.outputs:
        lacking = "inputs" if not found.inputs else "outputs"
        return ForeignModel(
            name,
            reason=f"its metadata names no {lacking}; the server has to tell them "
            "(MLServer: in model-settings.json)",
        )
    count = len(found.inputs) + len(found.outputs)
    if count > MODEL_TENSORS_MAX:
        return ForeignModel(name, reason=f"{count} tensors; the limit is {MODEL_TENSORS_MAX}")
    for each in (*found.inputs, *found.outputs):
        if reason := _fault(each):
            return ForeignModel(name, reason=reason)
    return ForeignModel(name, _specs(found.inputs), _specs(found.outputs))


def is_name(text: str) -> bool:
    """Whether a model of a server may be called so."""
    return 0 < len(text) <= MODEL_NAME_MAX and text.isprintable()


def error_text(status: int, body: bytes) -> str:
    """What a server says went wrong, for people."""
    try:
        found = msgspec.json.decode(body, type=_ErrorSaid)
    except MALFORMED:
        found = _ErrorSaid()
    said = found.error if found.error is not None else found.detail
    if said is None:
        said = body[:SAID_MAX].decode("utf-8", "replace").strip()
    text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
    return f"HTTP {status}{': ' if text else ''}{one_line(text, SAID_MAX)}"


def _decoded(body: bytes, kind: Callable[..., _Answer] | Any, asked: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        raise Unavailable(
            f"the answer to {asked} is not of the Open Inference Protocol: {error!s:.200}",
            hint="is that the HTTP port of a Triton, OVMS, KServe, MLServer or DIN",
        ) from None


def _fault(said: TensorSaid) -> str:
    if not 0 < len(said.name) <= TENSOR_NAME_MAX or not said.name.isprintable():
        return f"a tensor is called {said.name!r:.80}"
    if said.datatype != BYTES and said.datatype not in DTYPE_BYTES:
        return f"tensor {said.name!r} has the datatype {said.datatype!r:.40}, which DIN lacks"
    is_shape = all(isinstance(each, int) and each >= -1 for each in said.shape)
    if not is_shape or len(said.shape) > RANK_MAX:
        return f"tensor {said.name!r} has the shape {said.shape!r:.80}"
    return ""


def _specs(said: list[TensorSaid]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(each.name, each.datatype, _shape(each.shape)) for each in said)


def _shape(said: list[int]) -> tuple[Dim, ...] | None:
    """No dims: servers print that for a scalar and for a rank that they do not know."""
    return tuple(None if size == -1 else size for size in said) if said else None
