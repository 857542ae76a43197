"""The agent and its unsealing child, for real."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from din.agent.unsealer import NO_FILE, Unsealer
from din.domain.deployment import Epoch
from din.domain.model import Slice
from din.errors import Denied, TooLarge, Unavailable
from din.wire.messages import Prepare
from tests.vault_files import Home, slice_of

PLAIN = os.urandom(100_000)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def owner_of_memory(pid: int) -> int:
    return Path(f"/proc/{pid}/mem").stat().st_uid


def order_of(part: Slice, signature: bytes, grant: bytes = b"") -> Prepare:
    return Prepare(Epoch(1, 1), "m", part, (), (), 1, {}, "", {}, 1_000, signature, grant)


class Node:
    """A joined node's trust folder and one sealed slice."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "gateway")
        self.trust = folder / "node"
        public_key = self.home.enrol(self.trust)
        data, artifact = self.home.seal(PLAIN)
        self.file = folder / "slice"
        self.file.write_bytes(data)
        self.part = slice_of(artifact)
        self.order = order_of(
            self.part, self.home.sign(self.part), self.home.grant(data, public_key)
        )


def play(
    folder: Path, story: Callable[[Node, Unsealer], Awaitable[None]], idle_s: float = 60
) -> None:
    async def whole() -> None:
        node = Node(folder)
        unsealer = Unsealer(node.trust, idle_s=idle_s)
        try:
            await story(node, unsealer)
        finally:
            await unsealer.close()
        assert unsealer.pid is None

    asyncio.run(whole())


async def opened(node: Node, unsealer: Unsealer) -> bytes:
    descriptor = await unsealer.open(node.order, 0, node.file)
    try:
        return os.pread(descriptor, len(PLAIN) + 1, 0)
    finally:
        os.close(descriptor)


def test_one_child_serves_a_burst_and_ends(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        assert unsealer.pid is None
        found = await asyncio.gather(*(opened(node, unsealer) for _ in range(4)))
        assert set(found) == {PLAIN}
        first = unsealer.pid
        assert first is not None
        await unsealer.close()
        assert not is_there(first)
        assert await opened(node, unsealer) == PLAIN
        assert unsealer.pid not in (None, first)

    play(tmp_path, story)


def test_the_child_ends_by_itself_when_nothing_is_asked(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        await opened(node, unsealer)
        async with asyncio.timeout(30):
            while unsealer.pid is not None:  # noqa: ASYNC110 - it ends by its own timer
                await asyncio.sleep(0.01)

    play(tmp_path, story, idle_s=0.05)


def test_the_child_leaves_no_core(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        await opened(node, unsealer)
        pid = unsealer.pid
        assert pid is not None
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)

    play(tmp_path, story)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read every memory")
def test_the_child_cannot_be_read_by_other_programs_of_its_user(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        await opened(node, unsealer)
        assert unsealer.pid is not None
        # A process that is not dumpable belongs to root in /proc, whoever runs it.
        assert owner_of_memory(unsealer.pid) == 0

    play(tmp_path, story)


def test_a_refusal_is_the_childs_own_and_the_next_order_is_served(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        with pytest.raises(Denied, match="not signed by this cluster") as caught:
            await unsealer.open(order_of(node.part, bytes(64)), 0, node.file)
        assert caught.value.hint
        assert await opened(node, unsealer) == PLAIN
        assert await unsealer.open(order_of(slice_of(), node.home.sign(slice_of())), NO_FILE) == -1

    play(tmp_path, story)


def test_a_killed_child_fails_its_order_and_is_started_again(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        await opened(node, unsealer)
        assert unsealer.pid is not None
        os.kill(unsealer.pid, signal.SIGSTOP)
        asking = asyncio.ensure_future(opened(node, unsealer))
        await asyncio.sleep(0)
        os.kill(unsealer.pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="ended before it answered"):
            await asking
        assert await opened(node, unsealer) == PLAIN

    play(tmp_path, story)


def test_a_cancelled_order_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        await opened(node, unsealer)
        before = open_files()
        asking = asyncio.ensure_future(opened(node, unsealer))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await opened(node, unsealer) == PLAIN
        assert open_files() == before

    play(tmp_path, story)


def test_only_joined_nodes_and_sealed_slices_need_the_child(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        plain = order_of(slice_of(), b"")
        assert unsealer.is_needed(plain)
        local = Unsealer(tmp_path / "nowhere")
        assert not local.is_needed(plain)
        assert local.is_needed(node.order)

    play(tmp_path, story)


def test_a_statement_over_the_limit_is_refused(tmp_path: Path) -> None:
    async def story(node: Node, unsealer: Unsealer) -> None:
        order = Prepare(Epoch(1, 1), "m" * 200_000, node.part, (), (), 1, {}, "", {}, 1)
        with pytest.raises(TooLarge):
            await unsealer.open(order, 0, node.file)

    play(tmp_path, story)
