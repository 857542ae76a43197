"""A gateway for tests of the agent: real links and real HTTP, no deciding at all."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from din.config import HANDOVER_VARIABLE, NodeConfig, encode_config
from din.domain.deployment import Epoch, Route
from din.domain.gateway_view import GatewayView
from din.domain.model import Artifact, Edge, Slice
from din.domain.node import NodeId, NodeProfile
from din.domain.tensor import TensorMeta, TensorSpec, offsets_of
from din.transport.link import Link
from din.transport.server import LinkServer
from din.wire.heartbeat import decode_heartbeat, encode_heartbeat_answer
from din.wire.messages import AnyMessage, Prepare, Run
from din.wire.registration import Admission, decode_registration, encode_answer

GATEWAY_ID = "00000000000000ff"
CLUSTER = "agent-test"
WAIT_S = 40.0
EPOCH = Epoch(1, 1)


class FakeGateway:
    """Registers every node, serves artifacts, keeps every message."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifacts: dict[str, bytes] = {}
        self.artifact_starts: list[int] = []
        self.cut_after: int | None = None
        """Break one download off after so many bytes."""
        self.profiles: dict[str, NodeProfile] = {}
        self.beats = 0
        self.goodbyes: list[str] = []
        self.links: dict[str, Link] = {}
        self.closed: list[tuple[str, str, bool]] = []
        self.inbox: list[tuple[str, AnyMessage, bytes, tuple[int, ...]]] = []
        self._changed = asyncio.Event()
        self._places: dict[int, bytearray] = {}

    async def __aenter__(self) -> FakeGateway:
        self.server = LinkServer(GATEWAY_ID, 1, self)
        self.links_at = [f"unix:{self.folder}/g.sock"]
        self.server.listen_unix(f"{self.folder}/g.sock")
        self.http = await asyncio.start_server(self._on_http, "127.0.0.1", 0)
        self.port = self.http.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        self.http.close()
        for _, _, _, fds in self.inbox:
            for each in fds:
                os.close(each)
        await asyncio.sleep(0.05)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def artifact(self, data: bytes) -> Artifact:
        sha256 = hashlib.sha256(data).hexdigest()
        self.artifacts[sha256] = data
        return Artifact(sha256, len(data))

    async def until(self, found: Callable[[], Any]) -> Any:
        """What `found` answers as soon as it is true."""
        async with asyncio.timeout(WAIT_S):
            while not (answer := found()):
                self._changed.clear()
                await self._changed.wait()
        return answer

    async def message(self, kind: type[AnyMessage], node_id: str = "", nth: int = 0) -> Any:
        def find() -> Any:
            found = [
                (message, body, fds)
                for sender, message, body, fds in self.inbox
                if isinstance(message, kind) and node_id in ("", sender)
            ]
            return found[nth] if len(found) > nth else None

        return await self.until(find)

    async def joined(self, node_id: str) -> Link:
        return await self.until(lambda: self.links.get(node_id))

    # LinkHandler.

    def on_open(self, link: Link) -> None:
        self.links[link.peer_id] = link
        self._changed.set()

    def on_closed(self, link: Link, reason: str, is_orderly: bool) -> None:
        if self.links.get(link.peer_id) is link:
            del self.links[link.peer_id]
        self.closed.append((link.peer_id, reason, is_orderly))
        self._changed.set()

    def place_body(self, link: Link, message: AnyMessage, nbytes: int) -> memoryview | None:
        del link, message
        return memoryview(bytearray(nbytes))

    def on_body_abandoned(self, link: Link, message: AnyMessage, view: memoryview) -> None:
        del link, message, view

    def on_message(
        self, link: Link, message: AnyMessage, body: memoryview | None, fds: tuple[int, ...]
    ) -> None:
        if isinstance(message, Run) and message.target:
            self.links[message.target].send(message, [body] if body else [])
        self.inbox.append((link.peer_id, message, bytes(body or b""), fds))
        self._changed.set()

    # HTTP.

    async def _on_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                method, path, _ = first.split(" ")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                status, answer, more = self._answer(method, path, headers, body)
                cut = self.cut_after if "/artifacts/" in path else None
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Length: {len(answer)}\r\n{more}\r\n".encode()
                )
                writer.write(answer if cut is None else answer[:cut])
                await writer.drain()
                if cut is not None:
                    self.cut_after = None
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes, str]:
        if path == "/api/v1/gateway":
            view = GatewayView(
                gateway_id=GATEWAY_ID, cluster=CLUSTER, version="0", pid=1, state_path="",
                discovery_mode="unicast", nodes=0, models=0,
            )  # fmt: skip
            return 200, msgspec.json.encode(view), ""
        if path == "/api/v1/nodes" and method == "POST":
            profile = decode_registration(body).profile
            self.profiles[profile.name] = profile
            self._changed.set()
            return 200, encode_answer(
                Admission(
                    name=profile.name, gateway_id=GATEWAY_ID, heartbeat_interval_ms=200,
                    heartbeat_jitter_ms=30, links=tuple(self.links_at), protocol_version=1,
                )
            ), ""  # fmt: skip
        if path == "/api/v1/heartbeat":
            decode_heartbeat(body)
            self.beats += 1
            self._changed.set()
            return 200, encode_heartbeat_answer("ok"), ""
        if method == "DELETE":
            self.goodbyes.append(path)
            return 200, b"{}", ""
        data = self.artifacts.get(path.rpartition("/")[2])
        if data is None:
            return 404, b"", ""
        start = int(headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.artifact_starts.append(start)
        more = f"Content-Range: bytes {start}-{len(data) - 1}/{len(data)}\r\n"
        return (206, data[start:], more) if start else (200, data, "")

    # Orders.

    def prepare(
        self,
        node_id: str,
        slice_: Slice,
        edges: tuple[Edge, ...],
        *,
        workers: int = 1,
        epoch: Epoch = EPOCH,
        peers: dict[str, tuple[str, ...]] | None = None,
        remaining_ms: int = 30_000,
    ) -> None:
        order = Prepare(
            epoch, "test", slice_, edges, (), workers, {"threads": "1"},
            f"{self.url}/api/v1/artifacts/", peers or {}, remaining_ms,
        )  # fmt: skip
        assert self.links[node_id].send(order)

    def run(
        self,
        node_id: str,
        nodes: tuple[str, ...],
        tensors: dict[str, tuple[TensorMeta, bytes]],
        *,
        request_id: int = 1,
        attempt: int = 1,
        slice_index: int = 0,
        remaining_ms: int = 20_000,
        epoch: Epoch = EPOCH,
    ) -> None:
        metas = tuple(meta for meta, _ in tensors.values())
        route = Route(epoch, False, tuple(NodeId(each) for each in nodes))
        frame = Run(request_id, attempt, slice_index, route, remaining_ms, metas, GATEWAY_ID)
        assert self.links[node_id].send(frame, [data for _, data in tensors.values()])
        offsets_of(metas)


def make_slice(index: int, artifact: Artifact, names: tuple[str, str] = ("x", "y")) -> Slice:
    return Slice(
        index=index,
        slice_id=artifact.sha256,
        name=f"test/{index}",
        artifacts=(artifact,),
        inputs=(TensorSpec(names[0], "FP32", (1, 4)),),
        outputs=(TensorSpec(names[1], "FP32", (1, 4)),),
        memory_mib=1,
    )


class Node:
    """One agent process."""

    def __init__(
        self, folder: Path, name: str, gateway: FakeGateway, worker_requests_max: int = 0
    ) -> None:
        self.name = name
        self.folder = folder / name
        self._config = NodeConfig(
            name=name, port=0, cluster=CLUSTER, discovery_mode="unicast",
            gateway=(gateway.url,), state_dir=str(self.folder),
            worker_requests_max=worker_requests_max,
        )  # fmt: skip
        self._gateway = gateway
        self.node_id = ""

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def start(self) -> Link:
        self._gateway.profiles.pop(self.name, None)
        environment = {**os.environ, HANDOVER_VARIABLE: encode_config(self._config)}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "din.agent", env=environment, stderr=asyncio.subprocess.PIPE
        )
        self._log = asyncio.get_running_loop().create_task(self._read())
        profile = await self._gateway.until(lambda: self._gateway.profiles.get(self.name))
        self.node_id = profile.node_id
        self.addresses = profile.addresses
        return await self._gateway.joined(self.node_id)

    async def _read(self) -> None:
        self.lines: list[dict[str, Any]] = []
        stream = self.process.stderr
        assert stream is not None
        while line := await stream.readline():
            try:
                self.lines.append(msgspec.json.decode(line))
            except msgspec.DecodeError:
                self.lines.append({"event": line.decode()})

    def events(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.lines if each["event"] == name]

    async def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), 20)
        await self._log
        return code

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        transport = self.process._transport
        transport.close()
