"""Which servers of others stand behind which node, as the nodes say: in memory only.

What a node says replaces what it said before; it says it again whenever its link opens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from din.domain.foreign import (
    MODEL_NAME_MAX,
    MODEL_TENSORS_MAX,
    MODELS_MAX,
    SERVERS_MAX,
    URL_MAX,
    ForeignModel,
    ForeignServer,
    backends_of,
    is_foreign,
    usable,
)
from din.domain.model import Slice
from din.domain.node import NodeId
from din.domain.tensor import BYTES, DTYPE_BYTES, RANK_MAX, TensorSpec
from din.errors import Conflict, NotFound
from din.observability.printable import SAID_CHARACTERS_MAX, one_line
from din.wire.messages import Foreign

NODES_MAX: Final = 4_096
"""That have said something; who said it longest ago goes first."""
TEXT_MAX: Final = 256
NAMES_SHOWN_MAX: Final = 16


class ForeignBook:
    """Servers by node."""

    def __init__(self) -> None:
        self._said: OrderedDict[NodeId, tuple[ForeignServer, ...]] = OrderedDict()

    def heard(self, node_id: NodeId, message: Foreign) -> bool:
        """What a node says; whether it is new. What cannot be is left out."""
        servers = tuple(_checked(each) for each in message.servers[:SERVERS_MAX])
        before = self._said.pop(node_id, ())
        if servers:
            self._said[node_id] = servers
        while len(self._said) > NODES_MAX:
            self._said.popitem(last=False)
        return servers != before

    def servers(self, node_id: NodeId) -> tuple[ForeignServer, ...]:
        """Behind a node."""
        return self._said.get(node_id, ())

    def may_hold(self, node_id: NodeId, parts: Iterable[Slice]) -> bool:
        """Whether a server behind the node still runs what these slices need of servers."""
        foreign = {part.backend for part in parts if is_foreign(part.backend)}
        return not foreign or foreign.issubset(backends_of(self.servers(node_id)))

    def signature(self, name: str, nodes: Iterable[tuple[NodeId, str]]) -> ForeignModel:
        """A model that can be asked behind one of these nodes (id, name) at least. Raises NotFound,
        or Conflict where two of them have different models of one name."""
        found: dict[str, ForeignModel] = {}
        meant = tuple(nodes)
        for node_id, node in meant:
            entry = usable(self.servers(node_id)).get(name)
            if entry is not None:
                found[f"{entry[0].url} of node {node}"] = entry[1]
        if not found:
            raise self._elsewhere(name, meant) or self._unknown(name)
        (where, first), *others = found.items()
        for place, each in others:
            if each != first:
                raise Conflict(
                    f"model {name!r} is another one at {place} than at {where}",
                    hint=f"name the node: {name}@NODE, or load the same model at both servers",
                )
        return first

    def _elsewhere(self, name: str, meant: Sequence[tuple[NodeId, str]]) -> NotFound | None:
        """What to say where other nodes have what these have not."""
        ids = {node_id for node_id, _ in meant}
        if not any(
            name in usable(said) for node_id, said in self._said.items() if node_id not in ids
        ):
            return None
        asked = ", ".join(node for _, node in meant[:NAMES_SHOWN_MAX])
        return NotFound(
            f"no server behind node {asked} has a model {name!r}, but one behind another node has",
            hint=f"name that node, or none: din model register --foreign {name}",
        )

    def _unknown(self, name: str) -> NotFound:
        servers = [each for said in self._said.values() for each in said]
        told = [
            f"{server.url}: {server.reason or model.reason}"
            for server in servers
            for model in server.models
            if model.name == name and (server.reason or model.reason)
        ]
        told += [
            f"{each.url}: {each.reason}" for each in servers if each.reason and not each.models
        ]
        if told:
            return NotFound(
                f"no server behind a node runs model {name!r} now: {'; '.join(told[:4])}",
                hint="start that server, or load the model there; din node inspect NODE shows it",
            )
        names = sorted({each for said in self._said.values() for each in usable(said)})
        shown = ", ".join(names[:NAMES_SHOWN_MAX])
        return NotFound(
            f"no server behind a node has a model {name!r}",
            hint=f"their models are {shown}"
            if names
            else "start a node with --foreign URL, such as http://127.0.0.1:8090",
        )


def _checked(said: ForeignServer) -> ForeignServer:
    """It came over a wire, and goes into lists, plans and orders."""
    models = tuple(_model(each) for each in said.models[:MODELS_MAX] if _is_name(each.name))
    return ForeignServer(
        one_line(said.url, URL_MAX),
        one_line(said.name, TEXT_MAX),
        one_line(said.version, TEXT_MAX),
        models,
        one_line(said.reason, SAID_CHARACTERS_MAX),
        one_line(said.container, SAID_CHARACTERS_MAX),
    )


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MODEL_NAME_MAX and text.isprintable()


def _model(said: ForeignModel) -> ForeignModel:
    specs = (*said.inputs, *said.outputs)
    is_whole = bool(said.inputs and said.outputs) and len(specs) <= MODEL_TENSORS_MAX
    if not said.reason and not (is_whole and all(map(_is_spec, specs))):
        return ForeignModel(said.name, reason="the node told no signature that can be")
    kept = said if is_whole else replace(said, inputs=(), outputs=())
    return replace(kept, reason=one_line(said.reason, SAID_CHARACTERS_MAX))


def _is_spec(spec: TensorSpec) -> bool:
    is_named = 0 < len(spec.name) <= TEXT_MAX and spec.name.isprintable()
    shape = spec.shape or ()
    is_shape = len(shape) <= RANK_MAX and all(
        dim is None or (isinstance(dim, int) and dim >= 0) for dim in shape
    )
    return is_named and is_shape and (spec.dtype == BYTES or spec.dtype in DTYPE_BYTES)
