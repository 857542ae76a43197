"""Admission of requests: count them, refuse them when full or stopping, run each to its end."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from din.errors import Busy, DinError, Unavailable
from din.gateway.request import Request, RequestTools
from din.gateway.service import InferenceAnswer, InferenceCall
from din.gateway.serving import Serving

REQUESTS_INFLIGHT_MAX: Final = 2_048


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
        status = "500"
        self._inflight += 1
        tools.meter.inflight(self._inflight)
        try:
            self._admit()
            serving = self._book.serving(call.model_id, call.version)
            answer = await Request(tools, serving, call, started_ms).run()
            status = "200"
        except DinError as error:
            status = str(error.http_status)
            raise
        except asyncio.CancelledError:
            status = "499"
            raise
        finally:
            self._inflight -= 1
            tools.meter.inflight(self._inflight)
            seconds = (tools.clock() - started_ms) / 1000
            tools.meter.request_done(call.model_id, status, seconds)
        return answer

    def _admit(self) -> None:
        if self.is_stopping:
            raise Unavailable("this gateway is stopping", hint="send the request to another one")
        if self._inflight > REQUESTS_INFLIGHT_MAX:
            raise Busy(
                f"{REQUESTS_INFLIGHT_MAX} requests are under way, the limit of this gateway",
                hint="send fewer at once or add a gateway",
            )
