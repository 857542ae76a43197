"""The zygote as a real process."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from din.agent.ending import describe_exit
from din.agent.zygote import BACK_OFF_MS_MAX, Zygote, back_off_ms
from din.domain.crash import Death
from din.errors import ExecutionFailed, TooLarge, Unavailable
from din.system.arena import arena_layout, create_arena
from din.system.descriptors import control_pair
from din.wire.worker import Fork, Given

pytestmark = pytest.mark.system

LAYOUT = arena_layout(4096, 4096)


def order(worker_id: int, *, artifacts: int = 0, title: str = "") -> Fork:
    files = (Given("model", "0" * 64),) * artifacts
    return Fork(worker_id, "none", {}, (), (), files, (LAYOUT,), None, title)


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_gone(pid: int) -> bool:
    for _ in range(250):
        if not is_alive(pid):
            return True
        time.sleep(0.02)
    return False


def test_the_pause_doubles_up_to_half_a_minute():
    assert [back_off_ms(each) for each in (1, 2, 3, 9)] == [100, 200, 400, 25_600]
    assert back_off_ms(10) == back_off_ms(100_000) == BACK_OFF_MS_MAX


def test_ends_are_told_in_words():
    assert describe_exit(0) == "exit code 0"
    assert "could not load" in describe_exit(3)
    assert "did not end" in describe_exit(75)
    assert describe_exit(-11) == "killed by signal 11 (SIGSEGV)"
    assert describe_exit(-200) == "killed by signal 200 (unknown)"


def test_a_worker_that_cannot_load_ends_and_its_end_is_told():
    async def story() -> None:
        zygote = Zygote(asyncio.get_running_loop(), print)
        ended: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        ours, theirs = control_pair()
        arena = create_arena(LAYOUT)
        with ours, theirs:
            worker = await zygote.fork(order(1), [theirs.fileno(), arena], ended.set_result)
            theirs.close()
            assert b"load_fail" in await asyncio.to_thread(ours.recv, 10_000)
            assert "exit code 3" in (await ended).reason
            worker.kill()  # ended already: harmless
            worker.close()
        os.close(arena)
        await zygote.stop()
        await zygote.stop()
        with pytest.raises(Unavailable, match="stopped"):
            await zygote.start()

    asyncio.run(story())


def test_orders_that_do_not_hold_together_are_refused_and_the_zygote_lives():
    async def story() -> None:
        zygote = Zygote(asyncio.get_running_loop(), print)
        with pytest.raises(Unavailable, match="0 descriptors came, 2 were announced"):
            await zygote.fork(order(1), [], print)
        with pytest.raises(Unavailable, match="announced"):
            await zygote.fork(order(2, artifacts=70), [], print)
        with pytest.raises(TooLarge):
            await zygote.fork(order(3, title="t" * 70_000), [], print)
        pid = zygote.pid
        await zygote.start()
        assert zygote.pid == pid
        await zygote.stop()

    asyncio.run(story())


def test_many_forks_at_once_are_all_answered():
    async def story() -> None:
        zygote = Zygote(asyncio.get_running_loop(), print)
        ends: list[Death] = []
        arena = create_arena(LAYOUT)

        async def one() -> None:
            ours, theirs = control_pair()
            with ours, theirs:
                worker = await zygote.fork(
                    order(zygote.next_worker_id()), [theirs.fileno(), arena], ends.append
                )
                worker.close()

        await asyncio.gather(*(one() for _ in range(24)))
        while len(ends) < 24:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        os.close(arena)
        await zygote.stop()

    asyncio.run(story())


def test_death_while_forking_fails_the_fork_and_the_next_one_starts_anew():
    async def story() -> None:
        told: list[str] = []
        zygote = Zygote(asyncio.get_running_loop(), told.append)
        await zygote.start()
        first = zygote.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        ours, theirs = control_pair()
        arena = create_arena(LAYOUT)
        with ours, theirs:
            fork = asyncio.ensure_future(
                zygote.fork(order(1), [theirs.fileno(), arena], told.append)
            )
            await asyncio.sleep(0.05)
            os.kill(first, signal.SIGKILL)
            with pytest.raises(ExecutionFailed, match="SIGKILL"):
                await fork
            worker = await zygote.fork(order(2), [theirs.fileno(), arena], print)
            worker.close()
        assert zygote.pid not in (None, first)
        assert len(told) == 1
        os.close(arena)
        await zygote.stop()

    asyncio.run(story())


AGENT = """
import asyncio, sys, time
from din.agent.ending import describe_exit
from din.agent.zygote import Zygote
async def main():
    zygote = Zygote(asyncio.get_running_loop(), print)
    await zygote.start()
    print(zygote.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_zygote_ends_with_its_agent(number: int):
    with subprocess.Popen(
        [sys.executable, "-c", AGENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        time.sleep(0.3)
        assert is_alive(pid)
        agent.send_signal(number)
        agent.wait()
        assert wait_gone(pid)


def test_a_zygote_whose_agent_is_somebody_else_does_not_stay():
    ours, theirs = control_pair()
    with ours, theirs:
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "din.worker"),
                *("--control-fd", str(theirs.fileno()), "--parent-pid", "1"),
            ],
            pass_fds=(theirs.fileno(),),
            check=False,
        )
    assert done.returncode == 1


def test_the_zygote_has_one_thread_and_asks_nobody_home():
    """T17."""

    async def story() -> None:
        zygote = Zygote(asyncio.get_running_loop(), print)
        with pytest.raises(Unavailable):  # answered, so all imports are done
            await zygote.fork(order(1), [], print)
        assert zygote.pid is not None
        tasks, here, libraries = look_at(zygote.pid)
        assert tasks == 1
        assert here.endswith("(deleted)") or here == "/"  # of a root with nothing in it
        assert "onnxruntime" in libraries
        await zygote.stop()

    asyncio.run(story())


def look_at(pid: int) -> tuple[int, str, str]:
    if os.geteuid():
        pytest.skip("only root may look into a zygote")
    proc = Path(f"/proc/{pid}")
    tasks = len(list((proc / "task").iterdir()))
    return tasks, str((proc / "cwd").readlink()), (proc / "maps").read_text()


def test_a_zygote_that_stands_still_is_ended_when_it_takes_no_order():
    async def story() -> None:
        told: list[str] = []
        zygote = Zygote(asyncio.get_running_loop(), told.append)
        await imported(zygote)
        first, zygote._fork_timeout_s = zygote.pid, 0.2
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(Unavailable, match="takes no orders"):
            await zygote.fork(order(zygote.next_worker_id()), [], print)
        assert told == ["the zygote stood still and was killed: it took no order for 0.2 s"]
        assert wait_gone(first)
        zygote._fork_timeout_s = 0.0
        with pytest.raises(Unavailable, match="takes no orders"):
            await zygote.fork(order(zygote.next_worker_id()), [], print)
        second, zygote._fork_timeout_s = zygote.pid, 60.0
        assert second not in (None, first)  # one that still imports is left alone
        await imported(zygote)
        assert zygote.pid == second
        assert len(told) == 1
        await zygote.stop()

    asyncio.run(story())


async def imported(zygote: Zygote) -> None:
    """Wait until the zygote answers at all."""
    with pytest.raises(Unavailable, match="announced"):
        await zygote.fork(order(zygote.next_worker_id()), [], print)
