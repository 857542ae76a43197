"""Beats by datagram from the node's side, against the gateway's own keys."""

from __future__ import annotations

import asyncio
from typing import Any

from din.agent.beats import REST_BEATS, SILENT_MAX, DatagramBeats
from din.domain.node import NodeHealth, NodeId
from din.gateway.nodes.beats import BeatKeys
from din.transport.datagram import DatagramServer
from din.wire.heartbeat import Heartbeat, encode_heartbeat, encode_heartbeat_answer

HOST = "127.0.0.1"
NODE = NodeId("00112233aabbccdd")


def beat_of(counter: int) -> bytes:
    return encode_heartbeat(
        Heartbeat(node_id=NODE, session=7, counter=counter, health=NodeHealth())
    )


def keys_of(answer: str = "ok") -> BeatKeys:
    encoded = encode_heartbeat_answer("draining" if answer == "draining" else "ok")
    return BeatKeys(lambda _: encoded, lambda count: b"k" * count, {"datagram": 0})


def test_the_gateways_answer_is_what_comes_back() -> None:
    async def main() -> list[object]:
        keys = keys_of("draining")
        server = DatagramServer(HOST, 0, keys.receive)
        beats = await DatagramBeats(keys.give(NODE, 7), print).open(HOST, server.port)
        answers: list[object] = [await beats.ask(beat_of(number)) for number in (1, 2)]
        beats.close()
        server.close()
        return answers

    assert asyncio.run(main()) == ["draining", "draining"]


def test_answers_of_others_are_no_answers() -> None:
    async def main() -> object:
        keys = keys_of()

        def with_noise(datagram: bytes) -> bytes | None:
            answer = keys.receive(datagram)
            assert answer is not None
            forged = bytes([answer[0], 1, *answer[2:]])
            beats._heard(forged)
            beats._heard(b"junk")
            return answer

        server = DatagramServer(HOST, 0, with_noise)
        beats = await DatagramBeats(keys.give(NODE, 7), print).open(HOST, server.port)
        answer = await beats.ask(beat_of(1))
        beats.close()
        server.close()
        return answer

    assert asyncio.run(main()) == "ok"


def test_silence_sends_beats_by_http_and_datagrams_rest_for_a_while(monkeypatch: Any) -> None:
    monkeypatch.setattr("din.agent.beats.ANSWER_MS", 20)
    seen: list[bytes] = []
    reports: list[tuple[str, object]] = []

    def report(event: str, **facts: object) -> None:
        reports.append((event, facts["reason"]))

    def swallow(datagram: bytes) -> None:
        seen.append(datagram)

    async def main() -> None:
        server = DatagramServer(HOST, 0, swallow)
        beats = await DatagramBeats(b"k" * 32, report).open(HOST, server.port)
        for number in range(SILENT_MAX + REST_BEATS + 1):
            assert await beats.ask(beat_of(number)) is None
        beats.close()
        assert await beats.ask(beat_of(99)) is None
        server.close()

    asyncio.run(main())
    assert reports == [("beats_by_http", "no answer")]
    assert len(seen) == SILENT_MAX + 1
