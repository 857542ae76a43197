"""Beats by datagram, for nodes that got a key at their registration.

A beat that is not answered in time goes by HTTP instead, so a network that swallows datagrams costs
a node nothing but that time; after three in a row the datagrams rest for a minute's worth of beats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from din.errors import Denied, Unreachable, UsageError
from din.transport.datagram import DatagramCaller, datagram_caller
from din.wire.beat_datagram import BeatKey
from din.wire.heartbeat import HeartbeatAnswer

ANSWER_MS: Final = 500
SILENT_MAX: Final = 3
REST_BEATS: Final = 20


class DatagramBeats:
    """One registration's datagrams. Made anew with each."""

    def __init__(self, key: bytes, report: Callable[..., None]) -> None:
        """It beats by HTTP until `open`."""
        self._key = BeatKey(key)
        self._report = report
        self._beat = b""
        self._answer: asyncio.Future[HeartbeatAnswer] | None = None
        self._silent = 0
        self._resting = 0
        self._caller: DatagramCaller | None = None

    async def open(self, host: str, port: int) -> DatagramBeats:
        """Speak to this address from now on. Raises Unreachable when there is no way to it."""
        self._caller = await datagram_caller(host, port, self._heard)
        return self

    async def ask(self, beat: bytes) -> HeartbeatAnswer | None:
        """The gateway's answer to an encoded beat; None = send it by HTTP."""
        caller = self._caller
        if self._resting or caller is None:
            self._resting = max(0, self._resting - 1)
            return None
        self._beat = beat
        self._answer = asyncio.get_running_loop().create_future()
        try:
            caller.send(self._key.seal_beat(beat))
            async with asyncio.timeout(ANSWER_MS / 1000):
                answer = await self._answer
        except (Unreachable, TimeoutError) as error:
            self._was_silent(error)
            return None
        finally:
            self._answer = None
        self._silent = 0
        return answer

    def close(self) -> None:
        """Hear nothing more."""
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def _heard(self, datagram: bytes) -> None:
        waiting = self._answer
        if waiting is None or waiting.done():
            return
        try:
            waiting.set_result(self._key.open_answer(datagram, self._beat))
        except (Denied, UsageError):
            return  # somebody else's, or an old one: the true answer may still come

    def _was_silent(self, error: BaseException) -> None:
        self._silent += 1
        if self._silent == SILENT_MAX:
            self._silent, self._resting = 0, REST_BEATS
            reason = error.message if isinstance(error, Unreachable) else "no answer"
            self._report("beats_by_http", reason=reason, for_beats=REST_BEATS)
