"""Answers of a gateway as what programs see of them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from din.client.http import Answer
from din.client.result import Inference
from din.domain.malformed import MALFORMED
from din.domain.request import TraceStep
from din.domain.result import CONTENT_TYPE
from din.errors import Internal

View = TypeVar("View")


class _AdaptedAnswer(msgspec.Struct):
    request_id: str
    model_id: str
    result: dict[str, Any]
    version: str = ""
    execution_trace: tuple[TraceStep, ...] = ()


class _TensorAnswer(msgspec.Struct):
    model_name: str
    outputs: list[dict[str, Any]]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] = {}


def adapted_answer(answer: Answer) -> Inference:
    """Of /infer, in the form in which it came. Raises Internal, UsageError or TooLarge."""
    if answer.headers.get("content-type", "") == CONTENT_TYPE:
        from din.client.saved import inference_of

        return inference_of(answer.body, "the gateway's answer")
    found = decode_answer(answer, _AdaptedAnswer)
    return Inference(
        request_id=found.request_id,
        model_id=found.model_id,
        version=found.version,
        result=found.result,
        outputs={},
        execution_trace=found.execution_trace,
        is_adapted=True,
    )


def tensor_answer(answer: Answer) -> Inference:
    """Of the Open Inference Protocol, with binary tensors. Raises Internal."""
    from din.client.arrays import decode_outputs

    head_nbytes = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    found = decode_answer(answer._replace(body=answer.body[:head_nbytes]), _TensorAnswer)
    tensors = decode_outputs(found.outputs, memoryview(answer.body)[head_nbytes:])
    return Inference(
        request_id=found.id or answer.headers.get("din-request-id", ""),
        model_id=found.model_name,
        version=found.model_version,
        result=dict(tensors),
        outputs=dict(tensors),
        execution_trace=_steps(found.parameters.get("execution_trace")),
    )


def decode_answer(answer: Answer, kind: type[View]) -> View:
    """The body of an answer as a view. Raises Internal when the two versions of DIN differ."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except MALFORMED as error:
        raise Internal(
            f"the gateway's answer is not what this version of DIN knows: {error}",
            hint="compare `din --version` with the version in `din doctor`",
        ) from None


def _steps(text: object) -> tuple[TraceStep, ...]:
    if not isinstance(text, str):
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[TraceStep, ...])
    except MALFORMED:
        raise Internal("the gateway's execution_trace is not what this version knows") from None
