"""What nodes say of their engines is kept for people, within limits."""

from __future__ import annotations

from gateway_fakes import NODE_A, NODE_B

from din.domain.engine import DEVICES_MAX, WORDS_CHARACTERS_MAX, EngineFacts
from din.domain.node import NodeId
from din.gateway.nodes.engine_book import ENGINES_MAX, NODES_MAX, EngineBook
from din.wire.messages import EngineNews


def test_the_newest_word_counts() -> None:
    book = EngineBook()
    assert book.of(NODE_A) == ()
    book.heard(NODE_A, EngineNews((EngineFacts(backend="openvino", trouble="asked"),)))
    good = EngineFacts(backend="openvino", version="2026.4.1", devices=("CPU",))
    book.heard(NODE_A, EngineNews((good,)))
    assert book.of(NODE_A) == (good,)
    assert book.of(NODE_B) == ()
    assert str(good) == "openvino 2026.4.1 (CPU)"


def test_a_node_cannot_fill_the_book() -> None:
    book = EngineBook()
    loud = EngineFacts(
        backend="x" * 10_000, devices=("gpu\n" * 900,) * 500, trouble="\x1b[31m" + "y" * 100_000
    )
    book.heard(NODE_A, EngineNews((loud,) * 1000))
    kept = book.of(NODE_A)
    assert len(kept) == ENGINES_MAX
    assert len(kept[0].devices) == DEVICES_MAX
    assert len(kept[0].trouble) == WORDS_CHARACTERS_MAX
    assert "\x1b" not in kept[0].trouble
    for number in range(NODES_MAX):
        book.heard(NodeId(f"{number:016x}"), EngineNews(()))
    assert book.of(NODE_A) == ()
