"""The agent's side of the zygote: starts it when the first worker is wanted, starts it again after
its death, and tells each worker's owner how that worker ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from din.agent.child import end_child, start_child
from din.agent.ending import MemoryKills, death_of, describe_exit
from din.domain.crash import Death
from din.domain.malformed import MALFORMED
from din.errors import ExecutionFailed, Internal, TooLarge, Unavailable
from din.system.descriptors import close_all, receive_message, send_message
from din.wire.worker import MESSAGE_BYTES_MAX, Exited, Fork, Forked, ForkFailed, ZygoteAnswer

BACK_OFF_MS_MIN: Final = 100
BACK_OFF_MS_MAX: Final = 30_000
FORK_TIMEOUT_S: Final = 60.0
"""Includes the start of the zygote and its imports, which take seconds on a small board."""
START_TIMEOUT_S: Final = 300.0
"""A zygote that never answered is given so long: boards with slow cards import for minutes."""
TOLD_TIMEOUT_S: Final = 15.0
"""From the end of a worker until its zygote tells it: one that stands still tells nothing."""
FORKS_AT_ONCE_MAX: Final = 4
"""The kernel keeps as few as ten messages in a socket of this kind."""
STOP_TIMEOUT_S: Final = 3.0

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ZygoteAnswer)

OnExit = Callable[[Death], None]
"""Told once how a worker ended."""
Report = Callable[[str], None]
"""Takes a line for the log."""


class WorkerProcess:
    """A forked worker: its pid, and a pidfd that always means this very process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pid: int,
        pidfd: int,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_end`: called once when the process ends, whoever reaps it, unless `close` was."""
        self.pid = pid
        self._loop = loop
        self._pidfd = pidfd
        self._on_end = on_end
        loop.add_reader(pidfd, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._on_end()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; a process that has ended already is fine."""
        if self._pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Give the descriptor back."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


class Zygote:
    """At most one zygote process at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Report,
        *,
        is_insecure: bool = False,
        words: tuple[str, ...] = (),
        told_timeout_s: float = TOLD_TIMEOUT_S,
    ) -> None:
        """`is_insecure`: workers may run where nothing confines them. `words`: what it is to import
        instead of what every node needs. Tests shorten the time."""
        self._loop = loop
        self._report = report
        self._words = (*words, "--insecure") if is_insecure else words
        self._fork_timeout_s = FORK_TIMEOUT_S
        self._told_timeout_s = told_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._forking: dict[int, asyncio.Future[WorkerProcess]] = {}
        self._on_exit: dict[int, OnExit] = {}
        self._memory_kills = MemoryKills()
        self._last_worker_id = 0
        self._failures = 0
        self._patience_end_s = 0.0
        """Of the loop's clock: until then a zygote may answer nothing, as it starts."""
        self._start_lock = asyncio.Lock()
        self._fork_places = asyncio.Semaphore(FORKS_AT_ONCE_MAX)
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process is not None else None

    def next_worker_id(self) -> int:
        """A number that no worker of this agent session had."""
        self._last_worker_id += 1
        return self._last_worker_id

    async def start(self) -> None:
        """Start the process unless it runs; waits out the back-off after deaths.

        Raises Unavailable when it cannot be started.
        """
        async with self._start_lock:
            if self._process is None and self._failures and not self._is_stopped:
                await asyncio.sleep(back_off_ms(self._failures) / 1000)
            if self._is_stopped:
                raise Unavailable("the zygote was stopped")
            if self._process is None:
                self._process, self._control = start_child(
                    "din.worker", self._words, runs_engines=True
                )
                self._patience_end_s = self._loop.time() + START_TIMEOUT_S
                self._loop.add_reader(self._control, self._on_readable)

    async def fork(self, order: Fork, descriptors: Sequence[int], on_exit: OnExit) -> WorkerProcess:
        """A new worker; `on_exit` is called once after it ended. The descriptors stay the caller's.

        Raises Unavailable, ExecutionFailed or TooLarge; `on_exit` is not called then.
        """
        await self.start()
        control = self._control
        if control is None:
            raise ExecutionFailed("the zygote ended before it could fork a worker")
        data = _ENCODER.encode(order)
        if len(data) > MESSAGE_BYTES_MAX:
            raise TooLarge(
                f"the slice's description has {len(data)} bytes, over {MESSAGE_BYTES_MAX}",
                hint="cut the model so that fewer tensors cross",
            )
        async with self._fork_places:
            return await self._ask(control, order.worker_id, data, descriptors, on_exit)

    async def _ask(
        self,
        control: socket.socket,
        worker_id: int,
        data: bytes,
        descriptors: Sequence[int],
        on_exit: OnExit,
    ) -> WorkerProcess:
        future: asyncio.Future[WorkerProcess] = self._loop.create_future()
        self._forking[worker_id] = future
        self._on_exit[worker_id] = on_exit
        try:
            send_message(control, data, descriptors)
            return await asyncio.wait_for(future, self._fork_timeout_s)
        except (OSError, TimeoutError) as error:
            self._on_exit.pop(worker_id, None)
            if self._control is control and self._loop.time() >= self._patience_end_s:
                self._on_death(f"it took no order for {self._fork_timeout_s:g} s")
            raise Unavailable(f"the zygote takes no orders: {error or 'no answer'}") from error
        except BaseException:
            self._on_exit.pop(worker_id, None)
            raise
        finally:
            self._forking.pop(worker_id, None)

    async def stop(self) -> None:
        """End the process and with it every worker that is left."""
        self._is_stopped = True
        process = self._process
        if process is None:
            return
        self._disconnect()
        await end_child(process, STOP_TIMEOUT_S)
        self._process = None
        self._forget("the zygote was stopped")

    def _on_readable(self) -> None:
        if self._control is None:
            return
        try:
            data, descriptors = receive_message(self._control, MESSAGE_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, Internal):
            data, descriptors = b"", []
        if not data:
            self._on_death()
            return
        try:
            message = _DECODER.decode(data)
        except MALFORMED:
            close_all(descriptors)
            self._on_death()
            return
        self._handle(message, descriptors)

    def _handle(self, message: ZygoteAnswer, descriptors: list[int]) -> None:
        self._patience_end_s = 0.0  # it has imported what it needs
        if isinstance(message, Forked) and len(descriptors) == 1:
            self._failures = 0
            expect = partial(self._expect_told, message.worker_id)
            worker = WorkerProcess(self._loop, message.pid, descriptors[0], expect)
            future = self._forking.get(message.worker_id)
            if future is not None and not future.done():
                future.set_result(worker)
            else:
                worker.kill()  # nobody waits for it any more
                worker.close()
            return
        close_all(descriptors)
        if isinstance(message, Exited):
            death = death_of(message.exit_code, message.memory_mib_peak, self._memory_kills)
            self._tell_exit(message.worker_id, death)
        elif isinstance(message, ForkFailed):
            future = self._forking.get(message.worker_id)
            if future is not None and not future.done():
                future.set_exception(Unavailable(message.message))

    def _expect_told(self, worker_id: int) -> None:
        self._loop.call_later(self._told_timeout_s, self._check_told, worker_id)

    def _check_told(self, worker_id: int) -> None:
        """Its end was seen a while ago, and is the zygote's to tell."""
        if worker_id in self._on_exit and self._process is not None:
            self._on_death(f"it told no end of a worker for {self._told_timeout_s:g} s")

    def _on_death(self, stands_still: str = "") -> None:
        """It is gone, or of no use any more: what it does not do is told."""
        process = self._process
        self._disconnect()
        self._process = None
        self._failures += 1
        reason = "the zygote died"
        if process is not None:
            process.kill()  # an open process behind a closed socket is of no use
            how = describe_exit(process.wait())
            reason = f"the zygote died: {how}"
            if stands_still:
                reason = f"the zygote stood still and was killed: {stands_still}"
        self._report(reason)
        self._forget(reason)

    def _forget(self, reason: str) -> None:
        for worker_id, future in list(self._forking.items()):
            if not future.done():
                self._on_exit.pop(worker_id, None)
                future.set_exception(
                    ExecutionFailed(reason, hint="what it said last is in the node's log")
                )
        for worker_id in list(self._on_exit):
            self._tell_exit(worker_id, Death("zygote", reason))

    def _tell_exit(self, worker_id: int, death: Death) -> None:
        on_exit = self._on_exit.pop(worker_id, None)
        if on_exit is not None:
            on_exit(death)

    def _disconnect(self) -> None:
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None


def back_off_ms(failures: int) -> int:
    """Pause before try number `failures` + 1: 100 ms, doubling, at most 30 s."""
    return min(BACK_OFF_MS_MAX, BACK_OFF_MS_MIN * 2 ** min(failures - 1, 20))
