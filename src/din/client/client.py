"""`din.Client`: infer, plan and look, from a program. Synchronous, one connection, no threads."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from io import BufferedReader
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from din.client.answers import View, adapted_answer, decode_answer, tensor_answer
from din.client.credentials import load_credentials
from din.client.http import Answer, Connection
from din.client.result import Inference
from din.client.uploads import CONTROL_MS, OCTETS, UPLOAD_MS, Progress, upload
from din.domain.gateway_view import GatewayView
from din.domain.plan import Plan
from din.domain.request import Trace
from din.domain.result import CONTENT_TYPE as RESULT_TYPE
from din.domain.views import (
    LabelNode,
    ModelList,
    ModelView,
    NodeList,
    NodeView,
    PlanSlices,
    PlanView,
    RegisterModel,
    TraceList,
)
from din.errors import BadTensor, UsageError

DEFAULT_GATEWAY: Final = "http://127.0.0.1:8000"
INFER_MS: Final = 30_000
GRACE_MS: Final = 2_000
"""Waited beyond a request's own deadline, so that the gateway tells of it, not the socket."""
JSON: Final = {"Content-Type": "application/json"}

File = bytes | bytearray | memoryview | str | os.PathLike[str]


class Client:
    """Talks to one gateway. Use it as a context manager, or call `close`.

    >>> with din.Client() as client:
    ...     client.infer("centerface", "photo.jpg").result["boxes"]
    """

    def __init__(
        self,
        gateway: str | None = None,
        *,
        timeout_ms: int = INFER_MS,
        key_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """`gateway` is a URL; else DIN_GATEWAY, else http://127.0.0.1:8000. The API key is in
        `key_file`, DIN_API_KEY or the file of DIN_API_KEY_FILE; an https gateway is known by the
        authority in `ca_file` or DIN_CA_FILE. Raises UsageError, Denied."""
        self.timeout_ms = timeout_ms
        shown = load_credentials(os.environ, key_file=key_file, ca_file=ca_file)
        self._connection = Connection(gateway or gateway_of(os.environ), credentials=shown)

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return self._connection.url

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def infer(
        self,
        model: str,
        inputs: File | Mapping[str, object] | object,
        *,
        outputs: Sequence[str] = (),
        timeout_ms: int | None = None,
        request_id: str | None = None,
        version: str | None = None,
        precision: str | None = None,
        is_binary: bool = False,
    ) -> Inference:
        """Run one request. A file (its bytes or its path) goes through the model's adapters; a
        mapping of names to numpy arrays, or one array, are the model's own tensors. With
        `is_binary` a file's `outputs` are arrays too, in which NaN and infinities stay.

        Raises BadTensor, NotFound, CannotPlace, Unavailable, DeadlineExceeded and others.
        """
        asked: dict[str, Any] = {"timeout_ms": timeout_ms or self.timeout_ms}
        if precision is not None:
            asked["precision"] = precision
        headers = OCTETS
        if isinstance(inputs, bytes | bytearray | memoryview | str | os.PathLike):
            if is_binary:
                headers = {**OCTETS, "Accept": RESULT_TYPE}
            return self._infer_file(model, inputs, outputs, asked, request_id, version, headers)
        arrays = inputs if isinstance(inputs, Mapping) else {self._only_input(model): inputs}
        return self._infer_tensors(model, arrays, outputs, asked, request_id, version)

    def _infer_file(
        self,
        model: str,
        file: File,
        outputs: Sequence[str],
        asked: dict[str, Any],
        request_id: str | None,
        version: str | None,
        headers: Mapping[str, str],
    ) -> Inference:
        query = {"model": model, **asked}
        if outputs:
            query["outputs"] = ",".join(outputs)
        if request_id is not None:
            query["request_id"] = request_id
        if version is not None:
            query["version"] = version
        answer = self._connection.request(
            "POST",
            f"/infer?{urlencode(query)}",
            _bytes_of(file),
            headers,
            timeout_ms=asked["timeout_ms"] + GRACE_MS,
        )
        return adapted_answer(answer)

    def _infer_tensors(
        self,
        model: str,
        arrays: Mapping[str, object],
        outputs: Sequence[str],
        asked: dict[str, Any],
        request_id: str | None,
        version: str | None,
    ) -> Inference:
        from din.client.arrays import encode_request

        body = encode_request(arrays, outputs, request_id, asked)
        path = f"/v2/models/{_segment(model)}"
        path += f"/versions/{_segment(version)}/infer" if version is not None else "/infer"
        answer = self._connection.request(
            "POST",
            path,
            body.pieces,
            {
                **OCTETS,
                "Inference-Header-Content-Length": str(body.json_nbytes),
                "Content-Length": str(body.nbytes),
            },
            timeout_ms=asked["timeout_ms"] + GRACE_MS,
        )
        return tensor_answer(answer)

    def _only_input(self, model: str) -> str:
        inputs = self.model(model).inputs
        if len(inputs) != 1:
            names = ", ".join(repr(each.name) for each in inputs)
            raise BadTensor(
                f"model {model!r} takes {len(inputs)} inputs",
                hint=f"name each: {names} (--input NAME=FILE.npy, or a mapping in Python)",
            )
        return inputs[0].name

    def gateway(self) -> GatewayView:
        """Who the gateway is."""
        return self._get("/api/v1/gateway", GatewayView)

    def nodes(self) -> NodeList:
        """All nodes, lost ones included until they are forgotten."""
        return self._get("/api/v1/nodes", NodeList)

    def node(self, name: str) -> NodeView:
        """One node by name, id or unique prefix of its id. Raises NotFound."""
        return self._get(f"/api/v1/nodes/{_segment(name)}", NodeView)

    def drain(self, name: str, *, is_forced: bool = False, is_dry_run: bool = False) -> NodeView:
        """Move the slices of a node away and give it no new ones: it serves each until another
        node does, or with force nothing at once. Raises NotFound."""
        query = urlencode({"force": str(is_forced).lower(), "dry_run": str(is_dry_run).lower()})
        answer = self.call("POST", f"/api/v1/nodes/{_segment(name)}/drain?{query}")
        return decode_answer(answer, NodeView)

    def label(self, name: str, changes: Mapping[str, str | None]) -> NodeView:
        """Give a node labels, or take given ones back (None). Raises NotFound, UsageError."""
        body = msgspec.json.encode(LabelNode(labels=dict(changes)))
        answer = self.call("POST", f"/api/v1/nodes/{_segment(name)}/labels", body)
        return decode_answer(answer, NodeView)

    def undrain(self, name: str) -> NodeView:
        """Take a drain back. Raises NotFound."""
        answer = self.call("POST", f"/api/v1/nodes/{_segment(name)}/undrain")
        return decode_answer(answer, NodeView)

    def lift(self, name: str) -> NodeView:
        """Have a node load slices again that ended their workers there. Raises NotFound."""
        answer = self.call("POST", f"/api/v1/nodes/{_segment(name)}/lift")
        return decode_answer(answer, NodeView)

    def models(self) -> ModelList:
        """All models with their state."""
        return self._get("/api/v1/models", ModelList)

    def model(self, model: str, version: str | None = None) -> ModelView:
        """One model. Raises NotFound."""
        return decode_answer(self.model_answer(model, version), ModelView)

    def model_answer(self, model: str, version: str | None = None) -> Answer:
        """One model as the gateway wrote it. Raises NotFound."""
        query = f"?{urlencode({'version': version})}" if version is not None else ""
        return self.call("GET", f"/api/v1/models/{_segment(model)}{query}")

    def remove(self, model: str) -> ModelView:
        """Unload a model everywhere and forget it. Raises NotFound."""
        return decode_answer(self.call("DELETE", f"/api/v1/models/{_segment(model)}"), ModelView)

    def plan(self, model: str, version: str | None = None) -> Plan:
        """Where a request would run and why not elsewhere; touches no node."""
        query = {"model": model} | ({"version": version} if version is not None else {})
        return self._get(f"/api/v1/plan?{urlencode(query)}", PlanView).plan

    def plan_slices(self, asked: PlanSlices) -> Plan:
        """Where slices would go that are not registered. Raises CannotPlace with the reasons."""
        answer = self.call("POST", "/api/v1/plan", msgspec.json.encode(asked))
        return decode_answer(answer, PlanView).plan

    def traces(self, limit: int = 20) -> TraceList:
        """The newest traces."""
        return self._get(f"/api/v1/traces?limit={limit}", TraceList)

    def trace(self, request_id: str) -> Trace:
        """One trace. Raises NotFound."""
        return decode_answer(self.trace_answer(request_id), Trace)

    def trace_answer(self, request_id: str, *, is_binary: bool = False) -> Answer:
        """One trace as the gateway wrote it. Raises NotFound."""
        path = f"/api/v1/traces/{_segment(request_id)}"
        headers = {"Accept": RESULT_TYPE} if is_binary else JSON
        return self._connection.request("GET", path, headers=headers, timeout_ms=CONTROL_MS)

    def register(self, order: RegisterModel) -> ModelView:
        """Register a model whose bytes are in the store (see `upload`); returns at once."""
        return decode_answer(self.order_model(order), ModelView)

    def order_model(self, order: RegisterModel) -> Answer:
        """As `register`, with the answer as the gateway wrote it."""
        body = msgspec.json.encode(order)
        return self._connection.request(
            "POST", "/api/v1/models", body, JSON, timeout_ms=UPLOAD_MS, is_idempotent=False
        )

    def upload(
        self,
        path: str | os.PathLike[str],
        progress: Progress | None = None,
        *,
        encrypt: bool | None = None,
    ) -> str:
        """Store a file under its SHA256, which is returned; nothing is sent that is there.
        `encrypt` as in the registration: whether it is plain on the gateway's disk until then."""
        with _open_file(path) as file:
            return upload(self._connection, file, progress, encrypt)

    def upload_beside(
        self,
        path: str | os.PathLike[str],
        progress: Progress | None = None,
        *,
        encrypt: bool | None = None,
    ) -> dict[str, str]:
        """Store the files beside a model in which it keeps weights, as `upload` does; their SHA256
        by the location that the model gives: `external` of the registration.

        Raises NotFound for a missing one, UsageError for one that is a link, no ordinary file or
        outside of the model's folder.
        """
        from din.client.beside import opened_beside

        with _open_file(path) as model:
            return {
                location: upload(self._connection, file, progress, encrypt)
                for location, file in opened_beside(model)
            }

    def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        is_idempotent: bool = True,
        timeout_ms: int = CONTROL_MS,
    ) -> Answer:
        """Any request to the control API, with the answer as it came."""
        return self._connection.request(
            method, path, body, JSON, timeout_ms=timeout_ms, is_idempotent=is_idempotent
        )

    def _get(self, path: str, kind: type[View]) -> View:
        return decode_answer(self.call("GET", path), kind)


def gateway_of(environment: Mapping[str, str]) -> str:
    """The gateway's URL from DIN_GATEWAY (the first, where it names several), or the default."""
    return environment.get("DIN_GATEWAY", "").partition(",")[0] or DEFAULT_GATEWAY


def _segment(text: str) -> str:
    return quote(text, safe="")


def _bytes_of(file: File) -> bytes:
    if isinstance(file, bytes):
        return file
    if isinstance(file, bytearray | memoryview):
        return bytes(file)
    with _open(file) as opened:
        return opened.read()


def _open(path: str | os.PathLike[str], more_flags: int = 0) -> BufferedReader:
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | more_flags))
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"file {os.fspath(path)!r} cannot be read: {reason}",
            hint="give the path of a file that exists and that you may read",
        ) from None


def _open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """What is read more than once and has an end; opening a pipe would wait for its other end."""
    file = _open(path, os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise UsageError(
        f"{os.fspath(path)!r} is no ordinary file",
        hint="give the path of a file; what comes through a pipe has to be saved first",
    )
