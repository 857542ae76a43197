"""Admission of requests: count them, refuse them when full or stopping, run each to its end."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from din.errors import Busy, DinError, Internal, Unavailable
from din.gateway.metrics import OK
from din.gateway.request import Request
from din.gateway.request_tools import RequestTools
from din.gateway.service import InferenceAnswer, InferenceCall
from din.gateway.serving import Serving

REQUESTS_INFLIGHT_MAX: Final = 2_048
CANCELLED: Final = "cancelled"
"""Label of requests whose caller went away."""


class Book(Protocol):
    """Who serves a model."""

    def serving(self, model_id: str, version: str | None) -> Serving:
        """Raises NotFound."""
        ...


class Dispatch:
    """Runs requests. One per gateway."""

    def __init__(self, book: Book, tools: RequestTools) -> None:
        self._book = book
        self._tools = tools
        self._inflight = 0
        self.is_stopping = False

    @property
    def inflight(self) -> int:
        """Requests under way now."""
        return self._inflight

    async def infer(self, call: InferenceCall) -> InferenceAnswer:
        """Run one request. Raises any DinError; cancellation stops it on every node."""
        tools = self._tools
        started_ms = tools.clock()
        code = Internal.code
        self._inflight += 1
        try:
            self._admit()
            answer = await self._run(call, started_ms)
            code = OK
        except DinError as error:
            code = error.code
            raise
        except asyncio.CancelledError:
            code = CANCELLED
            raise
        finally:
            self._inflight -= 1
            seconds = (tools.clock() - started_ms) / 1000
            tools.metrics.count_request(call.model_id, code, seconds)
        return answer

    async def _run(self, call: InferenceCall, started_ms: float) -> InferenceAnswer:
        serving = self._book.serving(call.model_id, call.version)
        while True:
            try:
                return await Request(self._tools, serving, call, started_ms).run()
            except Unavailable:
                if not serving.is_retired:
                    raise
                successor = self._book.serving(call.model_id, call.version)
                if successor is serving:
                    raise
                serving = successor

    def _admit(self) -> None:
        if self.is_stopping:
            raise Unavailable("this gateway is stopping", hint="send the request to another one")
        if self._inflight > REQUESTS_INFLIGHT_MAX:
            raise Busy(
                f"{REQUESTS_INFLIGHT_MAX} requests are under way, the limit of this gateway",
                hint="send fewer at once or add a gateway",
            )
