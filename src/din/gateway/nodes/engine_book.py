"""What nodes said of their engines, for people. Placement goes by the registration."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from msgspec.structs import replace

from din.domain.engine import DEVICES_MAX, EngineFacts, bounded
from din.domain.node import NodeId
from din.wire.messages import EngineNews

NODES_MAX: Final = 4096
ENGINES_MAX: Final = 32
NAME_CHARACTERS_MAX: Final = 64


class EngineBook:
    """The newest word of each node; the longest silent ones go first."""

    def __init__(self) -> None:
        self._said: OrderedDict[NodeId, tuple[EngineFacts, ...]] = OrderedDict()

    def heard(self, node_id: NodeId, message: EngineNews) -> None:
        """It replaces what the node said before; words are cut to what people can read."""
        self._said.pop(node_id, None)
        self._said[node_id] = tuple(_cut(each) for each in message.engines[:ENGINES_MAX])
        while len(self._said) > NODES_MAX:
            self._said.popitem(last=False)

    def of(self, node_id: NodeId) -> tuple[EngineFacts, ...]:
        """What it said; nothing = it has not yet."""
        return self._said.get(node_id, ())


def _cut(facts: EngineFacts) -> EngineFacts:
    return replace(
        facts,
        backend=bounded(facts.backend)[:NAME_CHARACTERS_MAX],
        version=bounded(facts.version)[:NAME_CHARACTERS_MAX],
        devices=tuple(bounded(each)[:NAME_CHARACTERS_MAX] for each in facts.devices[:DEVICES_MAX]),
        trouble=bounded(facts.trouble),
        hint=bounded(facts.hint),
    )
