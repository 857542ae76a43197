"""What happens between a whole post and its answer: parse, check, ask the gateway, reply."""

from __future__ import annotations

import logging
from collections.abc import Callable

from din.api.oip import ParsedOip, oip_call, oip_reply, parse_known_oip, parse_oip
from din.api.oip_heads import Heads
from din.api.post import OCTETS, Post, PostKind, Reply, error_reply, new_request_id, request_id_of
from din.api.problem import as_din_error
from din.api.results import result_reply, wants_result
from din.api.seeds import infer_call, infer_reply, parse_infer, plan_reply
from din.api.signature import model_id_of
from din.api.tenants import manifest_for
from din.errors import DinError
from din.gateway.service import ControlService, InferenceAnswer, InferenceService, Started

_LOG = logging.getLogger("din.api")
UNKNOWN_MODEL = "unknown"


class Turns:
    """Serves posts; raises nothing but cancellation."""

    def __init__(self, inference: InferenceService, control: ControlService) -> None:
        self._inference = inference
        self._control = control
        self._heads = Heads()

    def heartbeat(self, post: Post) -> Reply:
        """One heartbeat, answered at once."""
        try:
            answer = self._control.heartbeat(b"".join(post.chunks), post.peer)
        except Exception as error:
            return self._failed("heartbeat", error, new_request_id())
        return Reply(200, [answer], new_request_id(), content_type=OCTETS)

    def start(self, post: Post, done: Callable[[Reply], None]) -> Started | None:
        """Begin an inference post that needs no task and call `done` with its answer, not before
        this returns and never after `cancel`; None = it needs one: `serve` it.

        What came before in the same form is taken here. Everything else, and whatever is wrong
        with a post, is `serve`'s to find and to tell.
        """
        if post.target.kind != "oip" or post.refusal is not None:
            return None
        try:
            request_id = request_id_of(None, post.headers)
            version = post.target.version
            model_id = model_id_of(post.target.model)
            manifest = manifest_for(self._inference, post.caller, model_id, version)
            parsed = parse_known_oip(post, self._heads, manifest)
            if parsed is None:
                return None
            call = oip_call(parsed, manifest, version, request_id)
            call.tenant = post.caller.tenant
        except DinError:
            return None

        def ended(outcome: InferenceAnswer | BaseException) -> None:
            if isinstance(outcome, InferenceAnswer):
                done(self._oip_reply(parsed, outcome))
            else:
                done(self._failed("oip", outcome, request_id))

        return self._inference.start(call, ended)

    async def serve(self, post: Post) -> Reply:
        """One inference post, failures included."""
        if post.refusal is not None:
            self.rejected(post.refusal)
            return error_reply(post.target.kind, post.refusal, new_request_id())
        if post.target.kind == "infer":
            return await self._infer(post)
        return await self._oip(post)

    async def _infer(self, post: Post) -> Reply:
        model_id, request_id = UNKNOWN_MODEL, None
        is_handed_over = False
        try:
            request_id = request_id_of(None, post.headers)
            parsed = parse_infer(post)
            model_id = parsed.model_id
            request_id = request_id_of(parsed.request.request_id, post.headers)
            version = parsed.request.version
            manifest = manifest_for(self._inference, post.caller, model_id, version)
            is_adapted = bool(manifest.adapted_inputs)
            if parsed.is_dry_run:
                plan = self._inference.plan(model_id, version, is_adapted=is_adapted)
                return plan_reply(plan, request_id)
            call = infer_call(parsed, manifest, request_id)
            call.tenant = post.caller.tenant
            is_handed_over = True
            answer = await self._inference.infer(call)
        except Exception as error:
            self._count(model_id, error, is_handed_over=is_handed_over)
            return self._failed("infer", error, request_id or new_request_id())
        try:
            if wants_result(post.headers.get(b"accept", b"")):
                return result_reply(answer, is_adapted=is_adapted)
            return infer_reply(answer, is_adapted=is_adapted)
        except Exception as error:
            return self._unanswerable("infer", error, answer)

    async def _oip(self, post: Post) -> Reply:
        model_id, request_id = UNKNOWN_MODEL, None
        is_handed_over = False
        try:
            request_id = request_id_of(None, post.headers)
            model_id = model_id_of(post.target.model)
            version = post.target.version
            manifest = manifest_for(self._inference, post.caller, model_id, version)
            parsed = parse_oip(post, self._heads)
            if parsed.request.id is not None:
                request_id = request_id_of(parsed.request.id, post.headers)
            call = oip_call(parsed, manifest, version, request_id)
            call.tenant = post.caller.tenant
            is_handed_over = True
            answer = await self._inference.infer(call)
        except Exception as error:
            self._count(model_id, error, is_handed_over=is_handed_over)
            return self._failed("oip", error, request_id or new_request_id())
        return self._oip_reply(parsed, answer)

    def _oip_reply(self, parsed: ParsedOip, answer: InferenceAnswer) -> Reply:
        try:
            return oip_reply(parsed, answer)
        except Exception as error:
            return self._unanswerable("oip", error, answer)

    def rejected(self, error: BaseException) -> None:
        """Count a post that never became whole (too large, malformed, too slow)."""
        self._count(UNKNOWN_MODEL, error, is_handed_over=False)

    def _count(self, model_id: str, error: BaseException, *, is_handed_over: bool) -> None:
        if not is_handed_over:
            self._inference.count_rejected(model_id, as_din_error(error).code)

    def _unanswerable(self, kind: PostKind, error: Exception, answer: InferenceAnswer) -> Reply:
        answer.release()
        return self._failed(kind, error, answer.request_id)

    def _failed(self, kind: PostKind, error: BaseException, request_id: str) -> Reply:
        if not isinstance(error, DinError):
            _LOG.error("request %s failed inside the gateway", request_id, exc_info=error)
        return error_reply(kind, error, request_id)
