"""Heartbeats by datagram: whom the gateway believes, and what it answers.

Strangers get no answer, whatever they send, so that the port tells nothing and amplifies nothing.
A gateway that has restarted knows no key: the node hears nothing, beats by HTTP, and is told there
to register again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from din.discovery.membership import MEMBERS_MAX
from din.domain.node import NodeId
from din.domain.trust import Peer
from din.errors import DinError, UsageError
from din.wire.beat_datagram import BODY, BeatKey, claims_of
from din.wire.registration import BEAT_KEY_BYTES, Admission

REFUSALS: Final = ("malformed", "stranger", "wrong code", "replayed")


class _Key(Struct):
    key: BeatKey
    session: int
    counter: int = -1


class BeatKeys:
    """Keys of the nodes that registered over TLS, and the last counter of each."""

    def __init__(
        self,
        take: Callable[[bytes], bytes],
        random_bytes: Callable[[int], bytes],
        taken: dict[str, int],
    ) -> None:
        """`take` is the fleet's: an encoded beat in, the encoded answer out. `taken`
        counts those that were taken, under `datagram`."""
        self._take = take
        self._random_bytes = random_bytes
        self._taken = taken
        self._keys: dict[bytes, _Key] = {}
        self.port = 0
        """Where datagrams are heard; 0 = nowhere, and no keys are given."""
        self.refused: dict[str, int] = dict.fromkeys(REFUSALS, 0)
        """Datagrams that were not believed, by reason."""

    def offered(self, answer: Admission, peer: Peer, node_id: NodeId, session: int) -> Admission:
        """The answer with a key, when it goes out over TLS and there is a port for datagrams."""
        if not self.port or peer.name is None:
            self.forget(node_id)
            return answer
        return replace(answer, beat_key=self.give(node_id, session), beat_port=self.port)

    def give(self, node_id: NodeId, session: int) -> bytes:
        """A fresh key for this registration; an older one counts no more."""
        if len(self._keys) >= MEMBERS_MAX:
            self._keys.pop(next(iter(self._keys)))
        key = self._random_bytes(BEAT_KEY_BYTES)
        self._keys[bytes.fromhex(node_id)] = _Key(BeatKey(key), session)
        return key

    def forget(self, node_id: NodeId) -> None:
        """The node is gone or was revoked: its beats count no more."""
        self._keys.pop(bytes.fromhex(node_id), None)

    def receive(self, datagram: bytes) -> bytes | None:
        """The answer to send back, or None for those who get none. Never raises."""
        try:
            node, session, counter = claims_of(datagram)
        except UsageError:
            return self._refuse("malformed")
        known = self._keys.get(node)
        if known is None:
            return self._refuse("stranger")
        beat = datagram[BODY]
        if not known.key.is_sealed(datagram, beat):
            return self._refuse("wrong code")
        if counter <= known.counter or session != known.session:
            return self._refuse("replayed")
        try:
            answer = self._take(beat)
        except DinError:
            return self._refuse("malformed")
        known.counter = counter
        self._taken["datagram"] += 1
        return known.key.seal_answer(answer, beat)

    def _refuse(self, reason: str) -> None:
        self.refused[reason] += 1
