"""Artifacts over HTTP: HEAD and GET with ranges, PUT as a stream, all by SHA256."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from din.api.asgi import body_stream, flag_of, json_response, only_query
from din.errors import NotFound, UsageError
from din.gateway.service import ControlService

PIECE_BYTES: Final = 256 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class ArtifactRoutes:
    """Handlers of /api/v1/artifacts/{sha256}."""

    def __init__(self, control: ControlService) -> None:
        self._control = control

    async def read(self, request: Request) -> Response:
        """HEAD and GET; one range at most, resumable by ETag and If-Range."""
        sha256 = _sha256_of(request)
        size = self._control.has_artifact(sha256)
        if size is None:
            raise NotFound(f"no artifact {sha256}", hint="upload it with PUT to this path")
        headers = {"etag": f'"{sha256}"', "accept-ranges": "bytes", "content-length": str(size)}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers={"etag": headers["etag"]})
        is_part = _RANGE.fullmatch(request.headers.get("range", "")) is not None
        is_part = is_part and request.headers.get("if-range", headers["etag"]) == headers["etag"]
        # Several ranges and other units are answered with the whole, as HTTP allows.
        span = _span(request.headers["range"], size) if is_part else (0, size)
        if span is None:
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
        start, end = span
        status = 206 if is_part else 200
        if is_part:
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
        headers["content-length"] = str(end - start)
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers)
        file = await asyncio.to_thread(open, self._control.artifact_path(sha256), "rb")
        return StreamingResponse(
            _pieces(file, start, end - start),
            status_code=status,
            headers=headers,
            media_type="application/octet-stream",
        )

    async def write(self, request: Request) -> Response:
        """PUT; needs Content-Length. `encrypt` = whether it is sealed as it comes; else as the
        gateway seals models. Storing the same bytes twice is harmless. With Content-Range it goes
        on where another one broke off."""
        sha256 = _sha256_of(request)
        only_query(request, "encrypt")
        is_encrypted = flag_of(request, "encrypt") if request.query_params else None
        declared = request.headers.get("content-length")
        if declared is None:
            raise UsageError("the upload has no Content-Length", hint="send the file's size")
        start, nbytes = _rest_of(request.headers.get("content-range"), int(declared))
        await self._control.put_artifact(
            sha256, body_stream(request), nbytes, is_encrypted=is_encrypted, start=start
        )
        return json_response({"sha256": sha256, "nbytes": nbytes}, 201)

    async def upload(self, request: Request) -> Response:
        """GET .../upload: from which byte an upload that broke off may go on."""
        sha256 = _sha256_of(request)
        only_query(request)
        size = self._control.uploaded_bytes(sha256)
        return json_response({"sha256": sha256, "nbytes_received": size})


def _rest_of(text: str | None, declared: int) -> tuple[int, int]:
    """First byte that is sent, and the size of the whole. Raises UsageError."""
    if text is None:
        return 0, declared
    found = _CONTENT_RANGE.fullmatch(text)
    first, last, nbytes = map(int, found.groups()) if found else (0, 0, 0)
    if last + 1 != nbytes or nbytes - first != declared:
        raise UsageError(
            f"Content-Range is {text!r:.80}, with a Content-Length of {declared}",
            hint="it is the rest of the file, bytes FIRST-LAST/SIZE, where LAST is SIZE - 1",
        )
    return first, nbytes


def _sha256_of(request: Request) -> str:
    text = request.path_params["sha256"]
    if not _SHA256.fullmatch(text):
        raise UsageError(f"{text!r:.80} is no SHA256", hint="64 lowercase hex digits")
    return text


def _span(text: str, size: int) -> tuple[int, int] | None:
    """First byte and end of the part asked for; None when it cannot be satisfied."""
    found = _RANGE.fullmatch(text)
    first, last = found.groups() if found else ("", "")
    if first:
        start, end = int(first), min(size, int(last) + 1) if last else size
    else:
        start, end = max(0, size - int(last or "0")), size
    return (start, end) if start < end else None


async def _pieces(file: BinaryIO, start: int, nbytes: int) -> AsyncIterator[bytes]:
    try:
        while nbytes:
            piece = await asyncio.to_thread(
                os.pread, file.fileno(), min(PIECE_BYTES, nbytes), start
            )
            if not piece:
                return
            start += len(piece)
            nbytes -= len(piece)
            yield piece
    finally:
        file.close()
