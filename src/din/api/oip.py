"""POST /v2/models/{m}/infer: the Open Inference Protocol, with its binary tensor extension."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

import msgspec
from msgspec import Struct, UnsetType

from din.api.decoding import decode_json
from din.api.oip_heads import Asked, Heads, KnownHead
from din.api.oip_request import OipRequest, OipTensor
from din.api.post import OCTETS, Post, Reply
from din.api.signature import (
    check_dtype,
    check_inputs,
    check_outputs,
    check_shape,
    precision_of,
    timeout_of,
)
from din.api.values import RAW_ONLY, decode_values, encode_values
from din.domain.model import ModelManifest
from din.domain.tensor import BYTES, TENSORS_MAX, TensorMeta, nbytes_of
from din.errors import BadTensor, UsageError
from din.gateway.service import Buffer, InferenceAnswer, InferenceCall

SIZE_DIGITS_MAX: Final = 15

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(OipRequest)


class ParsedOip(Struct):
    """A request with its bytes in place, not yet held against a signature."""

    request: OipRequest
    metas: tuple[TensorMeta, ...]
    chunks: list[list[Buffer]]
    known: KnownHead | None = None


def parse_oip(post: Post, heads: Heads) -> ParsedOip:
    """JSON and binary tensors of one post. Raises UsageError or BadTensor."""
    header = post.headers.get(b"inference-header-content-length")
    head = b""
    if header is None:
        request = decode_json(_DECODER, _joined(post.chunks), "the inference request")
        cursor = ChunkCursor([])
    else:
        size = _header_size(header, post.nbytes)
        cursor = ChunkCursor(post.chunks)
        head = b"".join(cursor.take(size))
        known = heads.find(head)
        if known is not None and known.nbytes == cursor.bytes_left:
            chunks = [cursor.take(meta.nbytes) for meta in known.metas]
            return ParsedOip(known.request, known.metas, chunks, known)
        request = decode_json(_DECODER, head, "the inference request")
    metas, chunks = parse_tensors(request.inputs, cursor)
    if cursor.bytes_left:
        raise BadTensor(
            f"{cursor.bytes_left} bytes follow the last binary tensor",
            hint="binary_data_size of each input must add up to the bytes after the JSON part",
        )
    parsed = ParsedOip(request, metas, chunks)
    if head and request.id is None and all(_is_raw(each) for each in request.inputs):
        parsed.known = KnownHead(request, metas)
        heads.keep(head, parsed.known)
    return parsed


def parse_known_oip(post: Post, heads: Heads, manifest: ModelManifest) -> ParsedOip | None:
    """What `parse_oip` finds, if the request has a head that came before and was found good for
    this model; else None."""
    header = post.headers.get(b"inference-header-content-length", b"")
    if len(post.chunks) != 1 or len(header) > SIZE_DIGITS_MAX or not header.isdigit():
        return None
    at, view = int(header), memoryview(post.chunks[0])
    known = heads.find(bytes(view[:at]))
    if known is None or known.checked_for is not manifest or known.nbytes != view.nbytes - at:
        return None
    chunks: list[list[Buffer]] = []
    for meta in known.metas:
        chunks.append([view[at : at + meta.nbytes]])
        at += meta.nbytes
    return ParsedOip(known.request, known.metas, chunks, known)


def _is_raw(each: OipTensor) -> bool:
    return each.parameters.get("binary_data_size") is not None


def _joined(chunks: Sequence[Buffer]) -> Buffer:
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _header_size(raw: bytes, nbytes: int) -> int:
    text = raw.decode("latin-1").strip()
    is_number = text.isascii() and text.isdigit() and len(text) <= SIZE_DIGITS_MAX
    size = int(text) if is_number else -1
    if not 0 < size <= nbytes:
        raise UsageError(
            f"Inference-Header-Content-Length is {text!r:.40}, but the body has {nbytes} bytes",
            hint="it is the length of the JSON part in bytes; binary tensors follow it",
        )
    return size


class ChunkCursor:
    """Cuts tensors out of a body that lies in pieces, without joining them."""

    def __init__(self, chunks: Sequence[Buffer]) -> None:
        self._chunks = chunks
        self._index = 0
        self._offset = 0
        self.bytes_left = sum(map(len, chunks))

    def take(self, nbytes: int) -> list[Buffer]:
        """The next bytes as views; the caller checks `bytes_left` first."""
        self.bytes_left -= nbytes
        taken: list[Buffer] = []
        while nbytes:
            chunk = self._chunks[self._index]
            end = min(len(chunk), self._offset + nbytes)
            if end > self._offset:
                taken.append(memoryview(chunk)[self._offset : end])
            nbytes -= end - self._offset
            self._offset = end
            if end == len(chunk):
                self._index += 1
                self._offset = 0
        return taken


def parse_tensors(
    inputs: Sequence[OipTensor], cursor: ChunkCursor
) -> tuple[tuple[TensorMeta, ...], list[list[Buffer]]]:
    """Metas and bytes of the inputs, in their order. Raises BadTensor."""
    if len(inputs) > TENSORS_MAX:
        raise BadTensor(
            f"{len(inputs)} inputs; the limit is {TENSORS_MAX}",
            hint="send the inputs that the model has: GET /v2/models/M lists them",
        )
    metas: list[TensorMeta] = []
    chunks: list[list[Buffer]] = []
    for each in inputs:
        check_dtype(each.name, each.datatype)
        shape = check_shape(each.name, each.shape)
        pieces = _pieces(each, shape, cursor)
        metas.append(TensorMeta(each.name, each.datatype, shape, sum(map(len, pieces))))
        chunks.append(pieces)
    return tuple(metas), chunks


def _pieces(each: OipTensor, shape: tuple[int, ...], cursor: ChunkCursor) -> list[Buffer]:
    size = each.parameters.get("binary_data_size")
    if size is None:
        if isinstance(each.data, UnsetType):
            raise BadTensor(
                f"input {each.name!r} has neither `data` nor binary_data_size",
                hint="send values in `data`, or raw bytes after the JSON part",
            )
        encoded = encode_values(each.name, each.datatype, shape, each.data)
        return [encoded] if encoded else []
    if not isinstance(each.data, UnsetType):
        raise BadTensor(
            f"input {each.name!r} has both `data` and binary_data_size",
            hint="send the numbers once: as `data`, or as bytes after the JSON part",
        )
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise BadTensor(
            f"input {each.name!r}: binary_data_size is {size!r:.40}",
            hint="it is the number of bytes of this tensor after the JSON part",
        )
    if each.datatype != BYTES and size != nbytes_of(each.datatype, shape):
        raise BadTensor(
            f"input {each.name!r} of shape {list(shape)} {each.datatype} needs "
            f"{nbytes_of(each.datatype, shape)} bytes, got {size}",
            hint="send row-major little-endian data without padding",
        )
    if size > cursor.bytes_left:
        raise BadTensor(
            f"input {each.name!r} has binary_data_size {size}, "
            f"but {cursor.bytes_left} bytes follow",
            hint="set Inference-Header-Content-Length and send the bytes after the JSON part",
        )
    return cursor.take(size)


def oip_call(
    parsed: ParsedOip, manifest: ModelManifest, version: str | None, request_id: str
) -> InferenceCall:
    """The call, held against the model's signature. Raises BadTensor or UsageError."""
    known = parsed.known
    if known is not None and known.checked_for is manifest:
        asked = known.asked
    else:
        asked = _asked(parsed, manifest)
        # The elements of BYTES are part of the signature and not of the head.
        if known is not None and all(meta.dtype != BYTES for meta in parsed.metas):
            known.checked_for, known.asked = manifest, asked
    return InferenceCall(
        model_id=manifest.model_id,
        version=version,
        request_id=request_id,
        metas=parsed.metas,
        chunks=parsed.chunks,
        is_adapted=False,
        outputs=asked.outputs,
        timeout_ms=asked.timeout_ms,
        is_retry_of_random_allowed=asked.is_retry_of_random_allowed,
        precision=asked.precision,
    )


def _asked(parsed: ParsedOip, manifest: ModelManifest) -> Asked:
    request = parsed.request
    wanted = tuple(each.name for each in request.outputs or ())
    check_inputs(manifest, parsed.metas, parsed.chunks, is_adapted=False)
    check_outputs(manifest, wanted, is_adapted=False)
    _check_forms(request, manifest)
    parameters = request.parameters
    return Asked(
        wanted,
        timeout_of(parameters.get("timeout_ms")),
        parameters.get("allow_random_retry") is True,
        precision_of(parameters.get("precision")),
    )


def _check_forms(request: OipRequest, manifest: ModelManifest) -> None:
    formless = [spec for spec in manifest.outputs if spec.dtype in RAW_ONLY]
    if not formless:
        return
    binary = binary_outputs(request, (spec.name for spec in formless))
    wanted = None if request.outputs is None else {each.name for each in request.outputs}
    for spec in formless:
        if spec.name not in binary and (wanted is None or spec.name in wanted):
            raise BadTensor(
                f"output {spec.name!r} is {spec.dtype}, which has no JSON form",
                hint="ask for it with the parameter binary_data: true",
            )


def binary_outputs(request: OipRequest, names: Iterable[str]) -> set[str]:
    """Of these outputs, those that shall come as raw bytes after the JSON part."""
    is_default = request.parameters.get("binary_data_output") is True
    said = {
        each.name: each.parameters["binary_data"] is True
        for each in request.outputs or ()
        if "binary_data" in each.parameters
    }
    return {name for name in names if said.get(name, is_default)}


def oip_reply(parsed: ParsedOip, answer: InferenceAnswer) -> Reply:
    """The answer; its binary outputs stay views into shared memory until `release`."""
    request, known = parsed.request, parsed.known
    if known is not None and known.output_metas == answer.metas:
        return _reply(request, answer, known.outputs, answer.views)
    outputs: list[dict[str, Any]] = []
    views: list[Buffer] = []
    binary = binary_outputs(request, (meta.name for meta in answer.metas))
    for meta, view in zip(answer.metas, answer.views, strict=True):
        entry: dict[str, Any] = {
            "name": meta.name,
            "datatype": meta.dtype,
            "shape": meta.shape,
        }
        if meta.name in binary:
            entry["parameters"] = {"binary_data_size": view.nbytes}
            views.append(view)
        else:
            entry["data"] = decode_values(meta, view) if prod(meta.shape) else []
        outputs.append(entry)
    described = msgspec.Raw(_ENCODER.encode(outputs))
    if known is not None and len(views) == len(outputs):
        known.output_metas, known.outputs = answer.metas, described
    return _reply(request, answer, described, views)


def _reply(
    request: OipRequest,
    answer: InferenceAnswer,
    outputs: msgspec.Raw,
    views: Sequence[Buffer],
) -> Reply:
    trace = _ENCODER.encode(answer.steps).decode()
    body: dict[str, Any] = {"model_name": answer.model_id, "model_version": answer.version}
    if request.id is not None:
        body["id"] = request.id
    body["parameters"] = {"execution_trace": trace}
    body["outputs"] = outputs
    encoded = _ENCODER.encode(body)
    reply = Reply(200, [encoded, *views], answer.request_id, release=answer.release)
    if views:
        reply.content_type = OCTETS
        reply.extra = b"inference-header-content-length: %d\r\n" % len(encoded)
    return reply
