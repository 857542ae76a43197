"""Results and traces in their binary form, for who asks for it by `Accept`."""

from __future__ import annotations

from typing import Final

from din.api.post import Reply
from din.domain.result import CONTENT_TYPE, Result
from din.gateway.service import InferenceAnswer
from din.wire.result import encode_result

RESULT_TYPE: Final = CONTENT_TYPE.encode()


def wants_result(accept: bytes) -> bool:
    """Whether `Accept` names the binary form, and not a form in JSON that it likes better."""
    if RESULT_TYPE not in accept.lower():
        return False
    liked = {RESULT_TYPE: 0.0, b"application/json": 0.0}
    for part in accept.lower().split(b","):
        kind, *parameters = (each.strip() for each in part.split(b";"))
        if kind in liked:
            liked[kind] = _quality(parameters)
    return liked[RESULT_TYPE] > 0 and liked[RESULT_TYPE] >= liked[b"application/json"]


def _quality(parameters: list[bytes]) -> float:
    """The weight `q`, from 0 to 1; what cannot be read counts as not given."""
    for each in parameters:
        if each.startswith(b"q="):
            try:
                return min(max(float(each[2:]), 0.0), 1.0)
            except ValueError:
                return 1.0
    return 1.0


def result_reply(answer: InferenceAnswer, *, is_adapted: bool) -> Reply:
    """The seeds' answer in binary; its tensors stay views into shared memory until `release`.

    Raises TooLarge.
    """
    result = Result(
        request_id=answer.request_id,
        model_id=answer.model_id,
        version=answer.version,
        is_adapted=is_adapted,
        outputs=answer.metas,
        execution_trace=answer.steps,
    )
    parts = encode_result(result, answer.views)
    reply = Reply(200, parts, answer.request_id, release=answer.release)
    reply.content_type = RESULT_TYPE
    return reply
