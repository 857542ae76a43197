"""POST /infer: JSON with base64, or a raw body with ?model=; adapted results; dry runs."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from din.api.decoding import decode_json
from din.api.oip import ChunkCursor, parse_tensors
from din.api.oip_request import OipTensor, TensorName
from din.api.post import Post, Reply, flag_of, query_of
from din.api.signature import check_inputs, check_outputs, plain_text, precision_of, timeout_of
from din.api.values import RAW_ONLY, decode_values, nested
from din.domain.model import ModelManifest
from din.domain.plan import Plan, Rejection
from din.domain.tensor import BYTES, TensorMeta, TensorSpec
from din.errors import BadTensor, UsageError
from din.gateway.service import Buffer, InferenceAnswer, InferenceCall

_QUERY_FIELDS: Final = (
    "dry-run",
    "model",
    "outputs",
    "precision",
    "request_id",
    "timeout_ms",
    "version",
)


class SeedRequest(Struct, forbid_unknown_fields=True):
    """The JSON body."""

    model_id: str | None = None
    input_data: Any = UNSET
    """Base64 of the file. Any type here, so that a dry run need not look at it."""
    inputs: list[OipTensor] | None = None
    """Tensors by name, for models without adapters."""
    timeout_ms: Any = None
    request_id: str | None = None
    outputs: list[TensorName] = []
    version: str | None = None
    allow_random_retry: bool = False
    precision: Any = None


_DECODER: Final = msgspec.json.Decoder(SeedRequest)


class ParsedInfer(Struct):
    """A post with its model named, its tensors not yet looked at."""

    model_id: str
    request: SeedRequest
    raw: Sequence[Buffer] | None
    """The body itself when it is the file; None when the body is JSON."""
    is_dry_run: bool


def parse_infer(post: Post) -> ParsedInfer:
    """Read query and body, but not the input. Raises UsageError."""
    fields = query_of(post.query)
    for name in fields:
        if name not in _QUERY_FIELDS:
            raise UsageError(
                f"unknown query field {name!r:.80}",
                hint=f"query fields are {', '.join(_QUERY_FIELDS)}",
            )
    is_dry_run = flag_of(fields.get("dry-run"), "dry-run")
    if _is_raw(post.headers.get(b"content-type", b"")):
        request, raw = SeedRequest(), post.chunks
    else:
        body = post.chunks[0] if len(post.chunks) == 1 else b"".join(post.chunks)
        request, raw = decode_json(_DECODER, body, "the request"), None
    _take_query(request, fields)
    return ParsedInfer(_model_of(request, fields), request, raw, is_dry_run)


def _is_raw(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind.startswith((b"image/", b"audio/", b"video/")) or kind == b"application/octet-stream"


def _take_query(request: SeedRequest, fields: dict[str, str]) -> None:
    if "timeout_ms" in fields:
        text = fields["timeout_ms"]
        is_number = text.isascii() and text.isdigit() and len(text) < 10
        request.timeout_ms = int(text) if is_number else text
    if "outputs" in fields:
        request.outputs = fields["outputs"].split(",")
    request.precision = fields.get("precision", request.precision)
    request.request_id = fields.get("request_id", request.request_id)
    request.version = fields.get("version", request.version)


def _model_of(request: SeedRequest, fields: dict[str, str]) -> str:
    named = fields.get("model")
    inside = request.model_id
    if named is not None and inside is not None and named != inside:
        raise UsageError(
            f"the query names model {named!r:.80}, the body {inside!r:.80}", hint="name it once"
        )
    found = inside if inside is not None else named
    if found is None:
        raise UsageError(
            "the request names no model",
            hint="give model_id in the JSON body, or ?model=ID with a raw body",
        )
    return plain_text(found, "model id", 128)


def infer_call(parsed: ParsedInfer, manifest: ModelManifest, request_id: str) -> InferenceCall:
    """The call, held against the model's signature. Raises BadTensor or UsageError."""
    request = parsed.request
    is_adapted = bool(manifest.adapted_inputs)
    check_outputs(manifest, request.outputs, is_adapted=is_adapted)
    metas, chunks = _tensors(parsed, manifest)
    check_inputs(manifest, metas, chunks, is_adapted=is_adapted)
    return InferenceCall(
        model_id=manifest.model_id,
        version=request.version,
        request_id=request_id,
        metas=metas,
        chunks=chunks,
        is_adapted=is_adapted,
        outputs=tuple(request.outputs),
        timeout_ms=timeout_of(request.timeout_ms),
        is_retry_of_random_allowed=request.allow_random_retry,
        precision=precision_of(request.precision),
    )


def _tensors(
    parsed: ParsedInfer, manifest: ModelManifest
) -> tuple[tuple[TensorMeta, ...], list[list[Buffer]]]:
    request = parsed.request
    if request.inputs is not None:
        if not isinstance(request.input_data, UnsetType):
            raise UsageError("the request has both input_data and inputs", hint="send one of them")
        return parse_tensors(request.inputs, ChunkCursor([]))
    specs = manifest.adapted_inputs
    if len(specs) != 1 or (specs[0].dtype != BYTES and specs[0].dtype != "UINT8"):
        takes = ", ".join(f"{each.name!r} {each.dtype}" for each in specs or manifest.inputs)
        raise BadTensor(
            f"model {manifest.model_id!r} takes tensors, not a file: {takes}",
            hint="send tensors (`inputs`, --input FILE.npy), or register it with an adapter",
        )
    return _file_tensor(specs[0], _file(parsed))


def _file(parsed: ParsedInfer) -> list[Buffer]:
    if parsed.raw is not None:
        content: list[Buffer] = [chunk for chunk in parsed.raw if chunk]
    else:
        content = [decode_base64(parsed.request.input_data)]
    if not sum(map(len, content)):
        raise BadTensor("the input is empty", hint="send the bytes of a file, such as a JPEG")
    return content


def _file_tensor(
    spec: TensorSpec, content: list[Buffer]
) -> tuple[tuple[TensorMeta, ...], list[list[Buffer]]]:
    nbytes = sum(map(len, content))
    shape: tuple[int, ...] = (nbytes,)
    if spec.dtype == BYTES:
        content = [nbytes.to_bytes(4, "little"), *content]
        nbytes, shape = nbytes + 4, (1,)
    return (TensorMeta(spec.name, spec.dtype, shape, nbytes),), [content]


def decode_base64(text: Any) -> bytes:
    """Standard base64, line breaks allowed. Raises BadTensor naming the position of what is not."""
    if isinstance(text, UnsetType) or text is None:
        raise BadTensor(
            "the request has no input_data", hint="input_data is the file in standard base64"
        )
    if not isinstance(text, str):
        raise BadTensor(
            f"input_data is {type(text).__name__}, but must be base64 text",
            hint="encode the file: base64 -w0 FILE",
        )
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        pass
    joined = re.sub(r"[\r\n\t ]+", "", text)
    try:
        return binascii.a2b_base64(joined, strict_mode=True)
    except ValueError as error:
        raise _bad_base64(text, joined, str(error)) from None


def _bad_base64(text: str, joined: str, reason: str) -> BadTensor:
    hint = "input_data is the file in standard base64"
    if text.startswith("data:"):
        hint = "send only what follows the comma of a data: URL"
    found = re.search(r"[^A-Za-z0-9+/=\s]", text)
    if found:
        if found.group() in "-_":
            hint = "this looks like URL-safe base64; use + and / instead of - and _"
        return BadTensor(
            f"input_data is not base64: {found.group()!r} at character {found.start()}", hint=hint
        )
    early = text.find("=", 0, len(text.rstrip("= \t\r\n")))
    if early >= 0:
        return BadTensor(
            f"input_data is not base64: padding at character {early} before the end", hint=hint
        )
    reason = reason.partition(":")[0] if len(joined) % 4 == 0 else "its length is no multiple of 4"
    return BadTensor(
        f"input_data is not base64: {reason} (it ends at character {len(text)})", hint=hint
    )


def infer_reply(answer: InferenceAnswer, *, is_adapted: bool) -> Reply:
    """The seeds' answer. The outputs are copied into JSON, so nothing outlives `release`."""
    result: dict[str, Any] = {}
    for meta, view in zip(answer.metas, answer.views, strict=True):
        result[meta.name] = _plain(meta, view) if is_adapted else _described(meta, view)
    body = {
        "request_id": answer.request_id,
        "status": "completed",
        "result": result,
        "model_id": answer.model_id,
        "version": answer.version,
        "execution_trace": answer.steps,
    }
    encoded = msgspec.json.encode(body)
    return Reply(200, [encoded], answer.request_id, release=answer.release)


def _plain(meta: TensorMeta, view: memoryview) -> Any:
    if not prod(meta.shape):
        return nested([], meta.shape) if len(meta.shape) > 1 else []
    if meta.dtype in RAW_ONLY:
        return _described(meta, view)
    flat = decode_values(meta, view)
    return nested(flat, meta.shape) if meta.shape else flat[0]


def _described(meta: TensorMeta, view: memoryview) -> dict[str, Any]:
    if meta.dtype in RAW_ONLY:
        coded = binascii.b2a_base64(view, newline=False).decode("ascii")
        return {"datatype": meta.dtype, "shape": meta.shape, "base64": coded}
    data = decode_values(meta, view) if prod(meta.shape) else []
    return {"datatype": meta.dtype, "shape": meta.shape, "data": data}


def plan_reply(plan: Plan, request_id: str) -> Reply:
    """A dry run in the seeds' words, and the whole plan beside it."""
    steps = [
        {
            "node": each.node,
            "reason": each.reason,
            "expected_ms": each.expected_ms,
            "memory_reserved_mb": each.memory_mib,
            "gpu_memory_reserved_mb": None,
            "slice": each.slice_name,
            "slice_index": each.slice_index,
            "rejected": [_rejection(no) for no in plan.rejections if _is_of(no, each.slice_index)],
        }
        for each in plan.placements
    ]
    body = {
        "request_id": request_id,
        "status": "planned",
        "execution_plan": steps,
        "expected_ms": plan.expected_ms,
        "plan": plan,
    }
    return Reply(200, [msgspec.json.encode(body)], request_id)


def _is_of(rejection: Rejection, slice_index: int) -> bool:
    return rejection.slice_index == slice_index


def _rejection(rejection: Rejection) -> dict[str, str]:
    return {
        "node": rejection.node,
        "constraint": rejection.constraint,
        "observed": rejection.observed,
        "required": rejection.required,
        "detail": rejection.detail,
    }
