"""The express way: a request for a worker on this host, from the call to the answer by callbacks.

Nearly every request of a busy gateway asks for a ready model of one slice with workers on this
host. It waits for nothing but its worker, so it needs no task and no coroutine, which cost it more
than everything that is done for it:

    begin --sent, or in line--> under way --outputs--> answered
      |                             |---worker failed, died, fell silent---> a task: Request.run
      `--not plain                  `---caller gone---> cancelled            goes on

`begin` is False where anything is not plain: not ready, several slices, no worker here, too many
in line, an output that does not exist. Nothing was changed then, and the caller asks
`Dispatch.infer`, which finds the same and says it in its own words. What a failed first attempt
means is decided in one place too, `Request.run`: only its success is short-circuited here.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from din.gateway.requests.direct_attempt import DirectAttempt
from din.gateway.requests.direct_run import DirectRun, Ended
from din.gateway.requests.failure import AttemptEnded, AttemptFailed
from din.gateway.requests.request import Request
from din.gateway.routes.serving import LiveReplica
from din.gateway.service import InferenceAnswer, InferenceDone
from din.gateway.telemetry.metrics import OK
from din.transport.channel import OutputSet

CANCELLED: Final = "cancelled"
"""Label of requests whose caller went away."""


class Office(Protocol):
    """What an express request needs of dispatch, which counts it among the others."""

    def ended(self, request: Request, code: str) -> None:
        """It is over."""
        ...

    async def go_on(self, request: Request, failed: AttemptFailed) -> InferenceAnswer:
        """Bring it to its end after a failed attempt, which counts it as over. Raises DinError."""
        ...


class Express:
    """One request without a task. Implements service.Started."""

    __slots__ = ("_attempt", "_done", "_office", "_replicas", "_request", "_run", "_task")

    def __init__(self, office: Office, request: Request, done: InferenceDone) -> None:
        self._office = office
        self._request = request
        self._done: InferenceDone | None = done
        self._replicas: dict[int, LiveReplica] = {}
        self._attempt: DirectAttempt | None = None
        self._run: DirectRun | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, now_s: float) -> bool:
        """Send it to a worker, or say that it must take the long way."""
        request = self._request
        if request.shape.single_slice is None or request.unknown_outputs():
            return False
        replicas = request.choose_now()
        if replicas is None:
            return False
        request.begin_attempt(replicas)
        self._replicas = replicas
        if self._send(now_s):
            return True
        request.end_attempt(replicas)
        return False

    def _send(self, now_s: float) -> bool:
        attempt = self._attempt = DirectAttempt.of(self._request, self._replicas)
        if attempt is None:
            return False
        until_s = now_s + attempt.patience_ms / 1000
        try:
            self._run = self._request.tools.direct.start(attempt.order, until_s, self._ended)
        except AttemptEnded:
            return False
        return True

    def cancel(self) -> None:
        """See service.Started."""
        if self._done is None:
            return
        self._done = None
        if self._task is not None:
            self._task.cancel()
        if self._run is None:
            return  # the task counts
        self._run.cancel()
        if self._task is None:
            self._request.end_attempt(self._replicas)
        self._request.keep_failure("cancelled", "")
        self._office.ended(self._request, CANCELLED)

    def _ended(self, outcome: Ended) -> None:
        attempt = self._attempt
        assert attempt is not None, "nothing ends before it began"
        self._request.end_attempt(self._replicas)
        if isinstance(outcome, OutputSet):
            answer = attempt.answer(outcome)
            try:
                self._tell(answer)
            finally:  # the books are written once the caller has its answer
                attempt.learn()
                self._office.ended(self._request, OK)
            return
        ended = outcome if isinstance(outcome, AttemptEnded) else attempt.silent()
        failed = AttemptFailed(self._replicas, ended)
        self._task = asyncio.get_running_loop().create_task(self._go_on(failed))

    async def _go_on(self, failed: AttemptFailed) -> None:
        self._run = None
        try:
            answer = await self._office.go_on(self._request, failed)
        except Exception as error:  # whatever it is, the caller waits for a word
            self._tell(error)
        else:
            self._tell(answer)

    def _tell(self, outcome: InferenceAnswer | BaseException) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)
        elif isinstance(outcome, InferenceAnswer):
            outcome.release()  # the caller went away in the same turn
