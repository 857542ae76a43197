"""Unique names: two cloned boards with one hostname both get in, the second under a longer name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from din.domain.node import NodeId


def _nobody(_: str) -> str:
    return ""


class Names:
    """Who holds which name. The suffix is taken from the node id, so it survives restarts."""

    def __init__(self) -> None:
        self.owner_of: Callable[[str], str] = _nobody
        """Id of the node that a name is kept for while it is away; empty for none."""
        self._holders: dict[str, NodeId] = {}
        self._names: dict[NodeId, str] = {}

    def give(self, node_id: NodeId, asked: str) -> tuple[str, str]:
        """The node's name and, when it differs from the one asked for, a warning for people."""
        self.release(node_id)
        name = free_name(node_id, asked, self._owner)
        self._holders[name] = node_id
        self._names[node_id] = name
        return name, "" if name == asked else self._warning(asked, name)

    def release(self, node_id: NodeId) -> None:
        """Free the name that this node holds, if any."""
        name = self._names.pop(node_id, None)
        if name is not None:
            del self._holders[name]

    def _owner(self, name: str) -> str:
        return self._holders.get(name) or self.owner_of(name)

    def _warning(self, asked: str, name: str) -> str:
        return (
            f"the name {asked!r} is taken by node {self._owner(asked)}; this node is called "
            f"{name!r}: start it with another --name to choose"
        )


def free_name(node_id: NodeId, asked: str, owner_of: Callable[[str], str]) -> str:
    """The name itself, or a longer one, so that it is nobody else's."""
    return next(each for each in _candidates(node_id, asked) if owner_of(each) in ("", node_id))


def _candidates(node_id: NodeId, asked: str) -> Iterator[str]:
    """The name itself, then with 4, 8, 16 digits of the node id, then numbered: never ends."""
    yield asked
    for digits in (4, 8, 16):
        yield f"{asked[: 62 - digits].rstrip('-')}-{node_id[:digits]}"
    for number in count(2):
        yield f"{asked[:40].rstrip('-')}-{node_id}-{number}"
