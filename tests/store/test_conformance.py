"""One suite that every store engine must pass. Today: SQLite."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from din.errors import Conflict, Unavailable, UsageError
from din.store.contract import KEY_BYTES_MAX, VALUE_BYTES_MAX, Change, Store
from din.store.sqlite import SqliteStore


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@asynccontextmanager
async def sqlite_store(folder: Path, clock: Clock) -> AsyncIterator[Store]:
    store = SqliteStore(folder / "din.sqlite", clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


ENGINES = [sqlite_store]


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.__name__)
def engine(request: pytest.FixtureRequest):
    return request.param


def run(engine, tmp_path, scenario, clock=None):
    async def main() -> None:
        used = clock or Clock()
        async with engine(tmp_path, used) as store:
            await asyncio.wait_for(scenario(store, used), 20)

    asyncio.run(main())


def test_a_put_is_read_back_and_revisions_only_grow(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        first = await store.put("models/a", b"1")
        second = await store.put("models/a", b"2")
        assert second > first > 0
        entry = await store.get("models/a")
        assert (entry.value, entry.revision) == (b"2", second)
        assert await store.get("models/b") is None

    run(engine, tmp_path, scenario)


def test_if_rev_zero_is_a_lock_that_only_one_gets(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        answers = await asyncio.gather(
            *(store.put("lock", b"x", if_rev=0) for _ in range(8)), return_exceptions=True
        )
        assert sum(isinstance(each, int) for each in answers) == 1
        assert sum(isinstance(each, Conflict) for each in answers) == 7

    run(engine, tmp_path, scenario)


def test_a_stale_revision_is_refused_and_names_the_current_one(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        old = await store.put("k", b"1")
        new = await store.put("k", b"2")
        with pytest.raises(Conflict, match=str(new)):
            await store.put("k", b"3", if_rev=old)
        with pytest.raises(Conflict):
            await store.delete("k", if_rev=old)
        assert await store.put("k", b"3", if_rev=new) > new

    run(engine, tmp_path, scenario)


def test_a_key_past_its_time_is_absent_and_its_lock_is_free(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        await store.put("leader", b"a", ttl_ms=1000, if_rev=0)
        clock.now_ms += 999
        assert await store.get("leader") is not None
        clock.now_ms += 1
        assert await store.get("leader") is None
        assert await store.list("lea") == ()
        assert await store.put("leader", b"b", ttl_ms=1000, if_rev=0) > 1

    run(engine, tmp_path, scenario)


def test_list_takes_the_prefix_literally(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        for key in ("m/a%", "m/a_b", "m/axb", "n/a"):
            await store.put(key, key.encode())
        assert [each.key for each in await store.list("m/a_")] == ["m/a_b"]
        assert [each.key for each in await store.list("m/a%")] == ["m/a%"]
        assert len(await store.list("m/")) == 3

    run(engine, tmp_path, scenario)


def test_a_watch_gives_every_change_once_and_in_order(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        seen: list[Change] = []

        async def watcher() -> None:
            async for change in store.watch("w/", 0):
                seen.append(change)
                if len(seen) == 22:
                    return

        task = asyncio.create_task(watcher())
        for number in range(20):
            await store.put(f"w/{number % 3}", str(number).encode())
            await store.put("other", b"")
        await store.delete("w/0")
        await store.put("w/t", b"", ttl_ms=10)
        clock.now_ms += 11
        await asyncio.wait_for(task, 5)
        assert [change.value for change in seen[:20]] == [str(n).encode() for n in range(20)]
        assert seen[20].kind == "delete"
        assert [change.revision for change in seen] == sorted({c.revision for c in seen})

    run(engine, tmp_path, scenario)


def test_an_expiry_reaches_the_watcher(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        revision = await store.put("x", b"1", ttl_ms=5)
        clock.now_ms += 6
        async for change in store.watch("x", revision):
            assert (change.kind, change.key) == ("expire", "x")
            break

    run(engine, tmp_path, scenario)


def test_a_queue_deduplicates_for_a_day(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        assert await store.push("q", "1", b"a")
        assert not await store.push("q", "1", b"b")
        (job,) = await store.pull("q", 10, 1000)
        assert job.body == b"a"
        assert await store.ack(job)
        assert not await store.push("q", "1", b"c")
        clock.now_ms += 24 * 3600 * 1000
        assert await store.push("q", "1", b"d")

    run(engine, tmp_path, scenario)


def test_a_lease_that_ran_out_is_given_to_another_and_fenced(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        await store.push("q", "1", b"a")
        (first,) = await store.pull("q", 1, 1000)
        assert await store.pull("q", 1, 1000) == ()
        clock.now_ms += 1000
        assert not await store.ack(first)
        (second,) = await store.pull("q", 1, 1000)
        assert (second.deliveries, second.lease > first.lease) == (2, True)
        assert not await store.ack(first)
        assert await store.extend(second, 5000)
        clock.now_ms += 4000
        assert await store.nack(second, delay_ms=10)
        assert await store.pull("q", 1, 1) == ()
        clock.now_ms += 10
        (third,) = await store.pull("q", 1, 1000)
        assert await store.ack(third)

    run(engine, tmp_path, scenario)


def test_delayed_jobs_wait_and_order_is_kept(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        await store.push("q", "late", b"", delay_ms=50)
        for name in "abc":
            await store.push("q", name, b"")
        assert [job.id for job in await store.pull("q", 2, 1000)] == ["a", "b"]
        clock.now_ms += 50
        assert [job.id for job in await store.pull("q", 9, 1000)] == ["late", "c"]

    run(engine, tmp_path, scenario)


def test_topics_reach_listeners_by_pattern_and_lose_the_oldest(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        listener = store.listen("node/*")
        waiting = asyncio.ensure_future(anext(listener))
        await asyncio.sleep(0)
        await store.emit("model/a", b"no")
        for number in range(1_100):
            await store.emit("node/a", str(number).encode())
        first = await waiting
        assert first == ("node/a", b"100")
        await listener.aclose()

    run(engine, tmp_path, scenario)


def test_limits_are_named(engine, tmp_path) -> None:
    async def scenario(store, clock) -> None:
        await store.put("k" * KEY_BYTES_MAX, b"")
        with pytest.raises(UsageError, match=str(KEY_BYTES_MAX + 1)):
            await store.put("k" * (KEY_BYTES_MAX + 1), b"")
        await store.put("v", b"x" * VALUE_BYTES_MAX)
        with pytest.raises(UsageError, match=str(VALUE_BYTES_MAX)):
            await store.put("v", b"x" * (VALUE_BYTES_MAX + 1))

    run(engine, tmp_path, scenario)


def test_state_outlives_the_process(engine, tmp_path) -> None:
    clock = Clock()

    async def write(store, clock) -> None:
        await store.put("a", b"1")
        await store.push("q", "1", b"body")

    async def read(store, clock) -> None:
        assert (await store.get("a")).value == b"1"
        (job,) = await store.pull("q", 1, 1000)
        assert job.body == b"body"

    run(engine, tmp_path, write, clock)
    run(engine, tmp_path, read, clock)


def test_what_was_acknowledged_before_kill_9_is_there(tmp_path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from din.store.sqlite import SqliteStore\n"
        "async def main():\n"
        "    store = SqliteStore(Path(sys.argv[1]), lambda: 0)\n"
        "    await store.open()\n"
        "    for number in range(100000):\n"
        "        await store.push('q', str(number), b'x')\n"
        "        print(number, flush=True)\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "din.sqlite"
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(50)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += [int(line) for line in child.stdout.read().split()]
    child.stdout.close()
    child.wait()

    async def read() -> None:
        store = SqliteStore(path, lambda: 1)
        await store.open()
        jobs = await store.pull("q", 1_000_000, 1000)
        assert {job.id for job in jobs} >= {str(number) for number in acknowledged}
        await store.close()

    asyncio.run(read())


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path) -> None:
    path = tmp_path / "din.sqlite"
    path.write_bytes(b"this is not a database, " * 100)

    async def scenario() -> None:
        store = SqliteStore(path, lambda: 0)
        try:
            with pytest.raises(Unavailable, match=r"din\.sqlite.*not a database") as caught:
                await store.open()
        finally:
            await store.close()
        assert "move it away" in caught.value.hint
        assert "space" not in caught.value.hint

    asyncio.run(scenario())


def fill(store: SqliteStore, pages: int) -> None:
    """Let the file become no larger, as a full disk would."""
    store._db().execute(f"PRAGMA max_page_count={pages}")


def test_a_full_disk_is_called_one_and_writing_goes_on_once_there_is_room(tmp_path) -> None:
    async def scenario() -> None:
        store = SqliteStore(tmp_path / "din.sqlite", lambda: 1)
        await store.open()
        try:
            await store.put("before", b"1")
            fill(store, 1)
            for write in (store.put("k", bytes(9000)), store.push("q", "1", bytes(9000))):
                with pytest.raises(Unavailable, match="full") as caught:
                    await write
                assert "free some space" in caught.value.hint
            assert await store.list("") == (await store.get("before"),)
            fill(store, 1000)
            await store.put("k", bytes(9000))
        finally:
            await store.close()

    asyncio.run(scenario())


def test_expiry_goes_on_after_the_disk_was_full(tmp_path) -> None:
    async def scenario() -> None:
        clock = Clock()
        store = SqliteStore(tmp_path / "din.sqlite", clock)
        await store.open()
        try:
            await store.put("x", b"1", ttl_ms=100)
            swept = asyncio.Event()
            expire, loop = store._expire, asyncio.get_running_loop()

            def refuse() -> bool:
                loop.call_soon_threadsafe(swept.set)
                raise sqlite3.OperationalError("database or disk is full")

            store._expire = refuse
            clock.now_ms += 200
            await asyncio.wait_for(swept.wait(), 20)
            store._expire = expire
            changes = store.watch("", 0)
            async with asyncio.timeout(20):
                kinds = [(await anext(changes)).kind for _ in range(2)]
            assert kinds == ["put", "expire"]
            await changes.aclose()
        finally:
            await store.close()

    asyncio.run(scenario())
