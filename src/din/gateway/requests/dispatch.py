"""Admission of requests: count them, refuse them when full or stopping, run each to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from din.errors import Busy, DinError, Internal, Unavailable
from din.gateway.requests.express import CANCELLED, Express
from din.gateway.requests.failure import AttemptFailed
from din.gateway.requests.precise import check_precision
from din.gateway.requests.request import Request
from din.gateway.requests.request_tools import RequestTools
from din.gateway.requests.sharding import Report, Sharding
from din.gateway.routes.serving import Serving
from din.gateway.service import InferenceAnswer, InferenceCall, InferenceDone
from din.gateway.telemetry.metrics import OK

REQUESTS_INFLIGHT_MAX: Final = 2_048


class Book(Protocol):
    """Who serves a model."""

    def serving(self, model_id: str, version: str | None) -> Serving:
        """Raises NotFound."""
        ...


class Sharing(Protocol):
    """Which tenants share what serves a model."""

    def now(self, shared: Serving, tenant: str) -> Serving | None:
        """Who serves this tenant; None = nobody yet."""
        ...

    async def serving(self, shared: Serving, tenant: str) -> Serving:
        """The same, made when it is not there yet. Raises Busy, Unavailable."""
        ...


class Dispatch:
    """Runs requests. One per gateway. Implements express.Office."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        book: Book,
        tools: RequestTools,
        report: Report,
    ) -> None:
        self._loop = loop
        self._sharding = Sharding(
            tools.traces, tools.clock, tools.random, report, tools.capacity_of
        )
        self._book = book
        self._tools = tools
        self._inflight = 0
        self.sharing: Sharing | None = None
        """None = all share all."""
        self.is_stopping = False

    @property
    def inflight(self) -> int:
        """Requests under way now."""
        return self._inflight

    async def infer(self, call: InferenceCall) -> InferenceAnswer:
        """Run one request. Raises any DinError; cancellation stops it on every node."""
        started_ms = self._tools.clock()
        self._inflight += 1
        return await self._counted(call.model_id, started_ms, self._run(call, started_ms))

    def start(self, call: InferenceCall, done: InferenceDone) -> Express | None:
        """See InferenceService."""
        if self.is_stopping or self._inflight >= REQUESTS_INFLIGHT_MAX:
            return None
        try:
            serving = self._serving_now(call)
            if serving is None:
                return None
            check_precision(serving.deployment.manifest, call)
            if len(self._sharding.shards(serving, call)) > 1:
                return None
        except DinError:
            return None
        request = Request(self._tools, serving, call, self._tools.clock())
        express = Express(self, request, done)
        if not express.begin(self._loop.time()):
            return None
        self._inflight += 1
        return express

    # express.Office.

    def ended(self, request: Request, code: str) -> None:
        """An express request is over."""
        self._count(request.call.model_id, request.started_ms, code)

    async def go_on(self, request: Request, failed: AttemptFailed) -> InferenceAnswer:
        """See express.Office."""
        call, started_ms = request.call, request.started_ms
        work = self._until_served(call, started_ms, request, failed)
        return await self._counted(call.model_id, started_ms, work)

    async def _counted(
        self, model_id: str, started_ms: float, work: Coroutine[Any, Any, InferenceAnswer]
    ) -> InferenceAnswer:
        code = Internal.code
        try:
            answer = await work
            code = OK
        except DinError as error:
            code = error.code
            raise
        except asyncio.CancelledError:
            code = CANCELLED
            raise
        finally:
            self._count(model_id, started_ms, code)
        return answer

    def _count(self, model_id: str, started_ms: float, code: str) -> None:
        self._inflight -= 1
        seconds = (self._tools.clock() - started_ms) / 1000
        self._tools.metrics.count_request(model_id, code, seconds)

    async def _run(self, call: InferenceCall, started_ms: float) -> InferenceAnswer:
        self._admit()
        serving = await self._serving(call)
        check_precision(serving.deployment.manifest, call)

        async def run(one: InferenceCall) -> InferenceAnswer:
            request = Request(self._tools, serving, one, started_ms)
            return await self._until_served(one, started_ms, request)

        shards = self._sharding.shards(serving, call)
        if len(shards) > 1:
            return await self._sharding.run(serving, call, shards, run)
        return await run(call)

    async def _until_served(
        self,
        call: InferenceCall,
        started_ms: float,
        request: Request,
        failed: AttemptFailed | None = None,
    ) -> InferenceAnswer:
        """A version that is retired meanwhile hands its requests to its successor."""
        while True:
            try:
                return await request.run(failed)
            except Unavailable:
                if not request.serving.is_retired:
                    raise
                successor = await self._serving(call)
                if successor is request.serving:
                    raise
                request, failed = Request(self._tools, successor, call, started_ms), None

    def _serving_now(self, call: InferenceCall) -> Serving | None:
        shared = self._book.serving(call.model_id, call.version)
        return shared if self.sharing is None else self.sharing.now(shared, call.tenant)

    async def _serving(self, call: InferenceCall) -> Serving:
        shared = self._book.serving(call.model_id, call.version)
        return shared if self.sharing is None else await self.sharing.serving(shared, call.tenant)

    def _admit(self) -> None:
        if self.is_stopping:
            raise Unavailable("this gateway is stopping", hint="send the request to another one")
        if self._inflight > REQUESTS_INFLIGHT_MAX:
            raise Busy(
                f"{REQUESTS_INFLIGHT_MAX} requests are under way, the limit of this gateway",
                hint="send fewer at once or add a gateway",
            )
