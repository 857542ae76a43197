"""Labels that operators give to nodes, and what trust taken back means."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from din.domain.node import NodeId, NodeProfile
from din.domain.trust import Peer, PeerName
from din.errors import Conflict, TooLarge, UsageError
from din.gateway.nodes.labels import LabelBook
from din.gateway.nodes.roll import Binding, Roll
from din.store.sqlite import SqliteStore

NODE = NodeProfile(
    node_id=NodeId("a" * 16), session=1, name="n", device_type="x86_64", cpu_model="", cpu_isa=(),
    cpu_cores=1, memory_mib=1, labels={"site": "hall-1", "trust": "low"},
)  # fmt: skip


def play(folder: Path, story) -> None:
    async def whole() -> None:
        store = SqliteStore(folder / "store.sqlite", lambda: 0)
        await store.open()
        try:
            await story(store)
        finally:
            await store.close()

    asyncio.run(whole())


def test_given_labels_stand_above_a_nodes_own_and_outlive_a_restart(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        book = LabelBook(store)
        changed = await book.change(NODE, {"trust": "high", "rack": "r1"})
        assert changed.labels == {"site": "hall-1", "trust": "high", "rack": "r1"}
        again = LabelBook(store)
        await again.load()
        assert again.applied(NODE).labels == changed.labels
        back = await again.change(again.applied(NODE), {"trust": None})
        assert back.labels == {"site": "hall-1", "trust": "low", "rack": "r1"}
        bare = await again.change(back, {"rack": None})
        assert bare.labels == NODE.labels
        assert again.applied(NODE) is NODE
        assert not await store.list("labels/")

    play(tmp_path, story)


def test_of_two_changes_at_once_neither_undoes_the_other(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        book = LabelBook(store)
        given = await book.change(NODE, {"trust": "high"})
        _, last = await asyncio.gather(
            book.change(given, {"trust": None}), book.change(given, {"rack": "r1"})
        )
        again = LabelBook(store)
        await again.load()
        wanted = {"site": "hall-1", "trust": "low", "rack": "r1"}
        assert last.labels == book.applied(NODE).labels == again.applied(NODE).labels == wanted

    play(tmp_path, story)


@pytest.mark.parametrize("changes", [{"": "x"}, {"a b": "x"}, {"a": ""}, {"a": "x" * 64}])
def test_a_malformed_label_is_refused(tmp_path: Path, changes: dict[str, str]) -> None:
    async def story(store: SqliteStore) -> None:
        with pytest.raises(UsageError):
            LabelBook(store).check(NODE, changes, ())

    play(tmp_path, story)


def test_a_node_has_a_bounded_number_of_given_labels(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        book = LabelBook(store)
        await book.change(NODE, {f"n{number}": "x" for number in range(16)})
        with pytest.raises(TooLarge):
            await book.change(NODE, {"one-more": "x"})

    play(tmp_path, story)


def test_trust_is_never_what_a_machine_of_the_network_says_of_itself(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        roll = Roll(store, lambda: 0)
        claiming = replace(NODE, labels={"trust": "high", "site": "a"})
        home = roll.admitted(Peer("127.0.0.1"), claiming)
        assert home.labels["trust"] == "high", "the gateway's own user on its own machine"
        assert "trust" not in roll.admitted(Peer("10.0.0.7"), claiming).labels
        name = PeerName("default", "node", NODE.node_id)
        await roll.bind(NODE.node_id, Binding("ab" * 32, "n", {"site": "b"}))
        machine = Peer("10.0.0.7", is_tls=True, name=name)
        joined = roll.admitted(machine, claiming)
        assert joined.labels == {"site": "b"}
        await roll.bind(NODE.node_id, Binding("ab" * 32, "n", {"trust": "high"}))
        trusted = roll.admitted(machine, claiming)
        assert trusted.labels == {"site": "a", "trust": "high"}

    play(tmp_path, story)


def test_a_label_that_came_with_the_token_can_be_taken_back_for_good(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        roll, book = Roll(store, lambda: 0), LabelBook(store)
        await roll.bind(NODE.node_id, Binding("ab" * 32, "n", {"trust": "high", "line": "4"}))
        machine = Peer("10.0.0.7", is_tls=True, name=PeerName("default", "node", NODE.node_id))
        here = book.applied(roll.admitted(machine, NODE))
        assert here.labels == {"site": "hall-1", "trust": "high", "line": "4"}
        here = await book.change(here, {"trust": "low"})
        by_token = tuple(roll.labels_of(NODE.node_id))
        book.check(here, {"trust": None}, by_token)
        await roll.take_labels(NODE.node_id, ["trust", "nobody-gave-this"])
        here = await book.change(here, {"trust": None}, by_token)
        assert here.labels == {"site": "hall-1", "line": "4"}, "neither given one shows again"
        again = Roll(store, lambda: 0)
        await again.load()
        assert again.admitted(machine, NODE).labels == {"site": "hall-1", "line": "4"}
        await again.bind(NODE.node_id, Binding("ab" * 32, "n", {"trust": "high"}))
        assert again.admitted(machine, NODE).labels["trust"] == "high", "it joined with a new token"

    play(tmp_path, story)


def test_taking_a_label_that_the_node_says_of_itself_is_refused_not_ignored(tmp_path: Path) -> None:
    async def story(store: SqliteStore) -> None:
        book = LabelBook(store)
        with pytest.raises(Conflict, match="says site=hall-1 of itself") as refused:
            book.check(NODE, {"site": None}, ())
        assert "din node label n site=none" in (refused.value.hint or "")
        book.check(NODE, {"nobody-has-this": None}, ())
        await book.change(NODE, {"site": "hall-2"})
        book.check(NODE, {"site": None}, ())

    play(tmp_path, story)


def test_who_registers_from_another_machine_without_tls_is_insecure_whatever_it_says(
    tmp_path: Path,
) -> None:
    async def story(store: SqliteStore) -> None:
        roll = Roll(store, lambda: 0)
        machine = Peer("10.0.0.7", is_tls=True, name=PeerName("default", "node", NODE.node_id))
        told = replace(NODE, is_insecure_network=True)
        admitted = [
            roll.admitted(peer, profile).is_insecure_network
            for peer in (Peer("127.0.0.1"), Peer("10.0.0.7"), machine)
            for profile in (NODE, told)
        ]
        assert admitted == [False, True, True, True, False, True]

    play(tmp_path, story)
