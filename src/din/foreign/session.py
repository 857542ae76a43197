"""A model of a server as a worker's session: DIN's tensors out, the server's answer in.

It has the form of `backends.contract.Session`: the worker feeds it as it feeds an engine, so that
deadlines, cancelling, shared memory and traces are the same.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from din.domain.foreign import ForeignModel
from din.domain.tensor import BYTES, TensorSpec
from din.errors import BadTensor, DinError, ExecutionFailed, Internal, TooLarge, Unavailable
from din.foreign.codec import (
    AnswerHead,
    Array,
    OutputHead,
    bytes_elements,
    check_outputs,
    decode_head,
    encode_request,
    from_values,
    target_for,
)
from din.foreign.connection import HEADER_LENGTH, JSON_BYTES_MAX, Connection
from din.foreign.metadata import error_text, model_path, read_model

METADATA_S: Final = 5.0
METADATA_BYTES_MAX: Final = 1024 * 1024
ERROR_BYTES_MAX: Final = 64 * 1024
OUTPUT_BYTES_MAX: Final = 1024 * 1024 * 1024
TIMEOUT_MS_MAX: Final = 3_600_000
TRITON, OWN = "triton", "din"


class Target(Struct, frozen=True, kw_only=True):
    """Which model of which server; the agent hands it to the worker as text."""

    url: str
    """What people know the server by."""
    address: str
    """Of IP: a worker looks nothing up."""
    port: str
    host: str
    """For the Host header."""
    prefix: str = ""
    """Before /v2."""
    model: str
    server: str = ""
    """Its name, which decides how it takes a time-out."""
    is_binary: str = ""
    token: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """With every request."""
        own = {"Host": self.host, "User-Agent": "din"}
        return {**own, "Authorization": f"Bearer {self.token}"} if self.token else own


def open_session(options: Mapping[str, str]) -> ForeignSession:
    """From what the agent handed over. Raises Unavailable, Internal."""
    try:
        target = Target(**options)
    except TypeError as error:
        raise Internal(f"the worker was told {', '.join(sorted(options))}: {error}") from None
    return ForeignSession(target)


class ForeignSession:
    """One model over one connection."""

    def __init__(self, target: Target) -> None:
        """Asks the server for the signature: it is there, and knows the model. Raises
        Unavailable."""
        self._target = target
        self._connection = Connection(target.address, int(target.port), target.headers, target.url)
        self._is_binary = target.is_binary == "true"
        self._deadline_ms = 0
        try:
            found = self._signature()
        except DinError:
            self._connection.close()
            raise
        self._inputs, self._outputs = found.inputs, found.outputs
        self._by_name = {spec.name: spec for spec in found.outputs}

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What the model takes."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What it gives, in its own order."""
        return self._outputs

    def until(self, deadline_ms: int) -> None:
        """When the next run is wanted, by the monotonic clock."""
        self._deadline_ms = deadline_ms

    def run(
        self,
        inputs: Mapping[str, Array],
        wanted: Sequence[str],
        targets: Mapping[str, Array],
    ) -> dict[str, Array]:
        """See Session. Raises BadTensor or TooLarge for what the server refuses, ExecutionFailed
        for what another one could do."""
        head, raw = encode_request(
            inputs, self._inputs, wanted, self._parameters(), is_binary=self._is_binary
        )
        headers = {"Content-Type": "application/json"}
        if raw:
            headers = {
                "Content-Type": "application/octet-stream",
                HEADER_LENGTH: str(len(head)),
            }
        path = self._target.prefix + model_path(self._target.model, "/infer")
        response = self._connection.ask("POST", path, [head, *raw], headers)
        if response.status != http.client.OK:
            raise self._refusal(response)
        try:
            return self._read(response, wanted, targets)
        except MemoryError:
            self._connection.close()
            raise ExecutionFailed(
                f"{self._target.url} answered with more than its worker may hold",
                hint="raise worker_memory_factor of the node, if the server means it",
            ) from None

    def stop(self) -> None:
        """Cut the connection: servers that look end the run then."""
        self._connection.cut()

    def close(self) -> None:
        """Leave the server."""
        self._connection.close()

    def warm(self) -> bool:
        """The server warms its models itself; nothing made up is sent to it."""
        return False

    # Inside.

    def _signature(self) -> ForeignModel:
        path = self._target.prefix + model_path(self._target.model)
        response = self._connection.ask("GET", path, timeout_s=METADATA_S)
        if response.status != http.client.OK:
            raise self._refusal(response)
        body = self._connection.read(response, METADATA_BYTES_MAX)
        found = read_model(self._target.model, body)
        if found.reason:
            raise Unavailable(f"model {found.name!r} of {self._target.url}: {found.reason}")
        return found

    def _parameters(self) -> dict[str, Any]:
        """How long we wait, to servers of which it is known how they take that."""
        left_ms = self._deadline_ms - time.monotonic_ns() // 1_000_000
        if not self._deadline_ms or left_ms <= 0:
            return {}
        if self._target.server == TRITON:
            return {"timeout": left_ms * 1000}  # microseconds in its queue
        if self._target.server == OWN:
            return {"timeout_ms": min(left_ms, TIMEOUT_MS_MAX)}
        return {}

    def _read(
        self,
        response: http.client.HTTPResponse,
        wanted: Sequence[str],
        targets: Mapping[str, Array],
    ) -> dict[str, Array]:
        connection = self._connection
        size = response.headers.get(HEADER_LENGTH)
        if size is None:
            body: bytes | bytearray = connection.read(response, JSON_BYTES_MAX)
        else:
            if not size.isascii() or not size.isdigit() or int(size) > JSON_BYTES_MAX:
                connection.close()
                raise ExecutionFailed(f"{self._target.url} answered {HEADER_LENGTH}: {size!r:.40}")
            body = bytearray(int(size))
            connection.fill(response, memoryview(body))
        try:
            head = decode_head(body)
            asked = check_outputs(head, self._by_name, wanted, OUTPUT_BYTES_MAX)
            found = self._raw_outputs(response, head, asked, targets)
        except DinError:
            connection.close()
            raise
        if size is not None:
            connection.finish(response)
        return {
            name: found[name] if name in found else from_values(each)
            for name, each in asked.items()
        }

    def _raw_outputs(
        self,
        response: http.client.HTTPResponse,
        head: AnswerHead,
        asked: Mapping[str, OutputHead],
        targets: Mapping[str, Array],
    ) -> dict[str, Array]:
        """They follow the JSON part in its order, those that nobody asked for among them."""
        found: dict[str, Array] = {}
        for each in head.outputs:
            nbytes = each.raw_bytes
            if nbytes is None:
                continue
            if asked.get(each.name) is not each or each.datatype == BYTES:
                data = memoryview(bytearray(nbytes))
                self._connection.fill(response, data)
                if each.name in asked:
                    found[each.name] = bytes_elements(each, data)
                continue
            array = target_for(each, targets.get(each.name))
            if nbytes:
                self._connection.fill(response, array.reshape(-1).view(np.uint8).data)
            found[each.name] = array
        return found

    def _refusal(self, response: http.client.HTTPResponse) -> DinError:
        status = response.status
        body = self._connection.read(response, ERROR_BYTES_MAX)
        told = f"model {self._target.model!r} of {self._target.url}: {error_text(status, body)}"
        match status:
            case 400 | 422:
                return BadTensor(told, hint="the server refused the request as it is")
            case 413:
                return TooLarge(told, hint="send less at once")
            case 401 | 403:
                hint = "see the token_file of that server in the node's configuration"
                return ExecutionFailed(told, hint=hint)
            case 404 | 429 | 503:
                return ExecutionFailed(told, hint="the server does not run that model now")
            case _:
                return ExecutionFailed(told, hint="the server's own log says more")
