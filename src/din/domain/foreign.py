"""Servers of others behind a node, that speak the Open Inference Protocol: what they hold."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from din.domain.tensor import TensorSpec

OIP: Final = "oip"
OIP_PREFIX: Final = "oip:"
SERVERS_MAX: Final = 8
"""Behind one node."""
MODELS_MAX: Final = 64
"""Of one server."""
MODEL_NAME_MAX: Final = 128
MODEL_TENSORS_MAX: Final = 256
"""Inputs and outputs of one model of a server."""
URL_MAX: Final = 256


class ForeignModel(Struct, frozen=True, array_like=True):
    """A model that a server holds."""

    name: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    reason: str = ""
    """Why nothing can be asked of it now; empty = it is ready."""


class ForeignServer(Struct, frozen=True, array_like=True):
    """A server as a node sees it."""

    url: str
    name: str = ""
    version: str = ""
    models: tuple[ForeignModel, ...] = ()
    """As known last, also while the server is down."""
    reason: str = ""
    """Why nothing can be asked of it now; empty = it answers."""
    container: str = ""
    """Of a server that the node started itself: the runtime and how often it began again."""


def backend_of(model: str) -> str:
    """The backend of slices that a server's model runs."""
    return OIP_PREFIX + model


def is_foreign(backend: str) -> bool:
    """Whether a server of others runs slices of this backend."""
    return backend.startswith(OIP_PREFIX)


def model_of(backend: str) -> str:
    """The model's name at its server."""
    return backend.removeprefix(OIP_PREFIX)


def backends_of(servers: tuple[ForeignServer, ...]) -> tuple[str, ...]:
    """Of everything that can be asked now; the first server that has a name has it alone."""
    return tuple(backend_of(name) for name in usable(servers))


def usable(servers: tuple[ForeignServer, ...]) -> dict[str, tuple[ForeignServer, ForeignModel]]:
    """Model name -> who runs it."""
    found: dict[str, tuple[ForeignServer, ForeignModel]] = {}
    for server in servers:
        for model in server.models if not server.reason else ():
            if not model.reason:
                found.setdefault(model.name, (server, model))
    return found


def trouble_with(model: str, servers: tuple[ForeignServer, ...]) -> str:
    """Why these servers cannot run a model; empty when none of them knows it."""
    told = [
        f"{server.url}: {server.reason or each.reason}"
        for server in servers
        for each in server.models
        if each.name == model
    ]
    # A server that was never reached has told no names.
    told += [f"{each.url}: {each.reason}" for each in servers if each.reason and not each.models]
    return "; ".join(told)
