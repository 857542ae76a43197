"""A whole gateway in virtual time, with nodes that behave as agents do: they register, dial, beat,
load what they are told to, die and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from cut_play import table_of
from gateway_fakes import GATEWAY_ID, Reports, VirtualLoop
from msgspec.structs import replace

from din.artifacts.files import ArtifactFolder
from din.discovery.admission import Terms
from din.discovery.membership import Membership
from din.discovery.schedule import FLEET, BeatSchedule
from din.domain.cuts import CutTable
from din.domain.deployment import Epoch
from din.domain.model import AnalyseRequest, CarveAnswer, CarveRequest, Partition
from din.domain.node import NodeHealth, NodeId, NodeProfile
from din.domain.request import SliceTiming
from din.domain.tensor import TensorMeta, aligned
from din.domain.trust import Peer
from din.domain.views import RegisterModel
from din.errors import Conflict, DinError, Unavailable
from din.gateway.control import GatewayService
from din.gateway.core import Effects, Gateway
from din.gateway.telemetry.metrics import GatewayMetrics
from din.gateway.trust.vault import Vault
from din.placement.policy import policy_of
from din.store.contract import Entry
from din.wire.heartbeat import Heartbeat, decode_heartbeat_answer, encode_heartbeat
from din.wire.messages import (
    AnyMessage,
    Failed,
    Prepare,
    Prepared,
    PrepareFailed,
    Result,
    Run,
    Unload,
)
from din.wire.registration import Admission, decode_answer, encode_registration
from tests.strategies import ordered

CLUSTER = "test"
PEER = Peer("127.0.0.1")
SOURCE = "5" * 64
LOAD_S = 0.5
REDIAL_S = 0.3
Key = tuple[Epoch, int]


class MemoryStore:
    """The verbs that the gateway uses, without a thread."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.revision = 0

    async def put(self, key: str, value: bytes, **_: object) -> int:
        self.revision += 1
        self.entries[key] = Entry(key, value, self.revision)
        return self.revision

    async def list(self, prefix: str) -> tuple[Entry, ...]:
        return tuple(self.entries[key] for key in sorted(self.entries) if key.startswith(prefix))

    async def get(self, key: str) -> Entry | None:
        return self.entries.get(key)

    async def delete(self, key: str, *, if_rev: int | None = None) -> bool:
        entry = self.entries.get(key)
        if if_rev is not None and (entry.revision if entry is not None else 0) != if_rev:
            raise Conflict(f"{key!r} has another revision")
        self.revision += 1
        return self.entries.pop(key, None) is not None


class ScriptedCarving:
    """Answers with the partition that was put under the model's source."""

    def __init__(self) -> None:
        self.partitions: dict[str, Partition] = {}
        self.requests: list[CarveRequest] = []
        self.cut: Partition | DinError | None = None
        """What comes of cuts that DIN chose."""
        self.weights_mib = 23
        """Of each of two operators."""

        self.assignment: tuple[int, ...] = ()
        """Slice of each operator, as answered."""
        self.whole: Partition | None = None
        """Answered from the second time on that a source is carved."""
        self.carved: set[str] = set()
        self.encoded: Partition | None = None
        """Answered where encodings are asked for."""

    async def analyse(self, request: AnalyseRequest, source: str, external: Any = None) -> CutTable:
        if isinstance(self.cut, DinError):
            raise self.cut
        return table_of(2, self.weights_mib, source)

    async def read(self, sha256: str, nbytes_max: int) -> bytes:
        raise AssertionError(f"nothing was uploaded as {sha256} of {nbytes_max} bytes")

    async def carve(
        self,
        request: CarveRequest,
        source: str,
        external: Mapping[str, str],
        *,
        is_sealed: bool = False,
    ) -> CarveAnswer:
        assert not is_sealed
        self.requests.append(request)
        partition = self.partitions[source]
        if len(set(request.assignment)) > 1:
            assert isinstance(self.cut, Partition), "no cut was prepared"
            partition = self.cut
        if self.whole is not None and source in self.carved:
            partition = self.whole
        if request.encodings:
            assert self.encoded is not None, "no encoded partition was prepared"
            partition = self.encoded
        self.carved.add(source)
        first, last = partition.slices[0], partition.slices[-1]
        return CarveAnswer(
            source_sha256=source,
            inputs=first.inputs,
            outputs=last.outputs,
            slices=partition.slices,
            edges=partition.edges,
            cuts=(),
            assignment=self.assignment,
            operators=1,
            opset=17,
            ir_version=8,
        )


class FakeLink:
    """The gateway's end of a link to a fake node."""

    is_local = False
    local_host = ""
    peer_host = ""
    rtt_ms: float | None = None
    mib_per_second: float | None = None

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.peer_id = node.node_id
        self.peer_session = node.session
        self.is_open = True

    def send(
        self,
        message: AnyMessage,
        body: Sequence[memoryview | bytes] = (),
        *,
        on_sent: Callable[[bool], None] | None = None,
    ) -> bool:
        if not self.is_open:
            return False
        self.node.loop.call_soon(self.node.heard, self, message, b"".join(body))
        if on_sent is not None:
            self.node.loop.call_soon(on_sent, True)
        return True

    def close(self, reason: str, *, is_orderly: bool = False) -> None:
        if self.is_open:
            self.is_open = False
            self.node.loop.call_soon(self._closed, reason, is_orderly)

    def _closed(self, reason: str, is_orderly: bool) -> None:
        self.node.gateway.links.on_closed(self, reason, is_orderly)
        self.node.link_closed(self)


NOW_MS = 1_767_225_600_000
"""The gateway's time of day."""


class FakeNode:
    """One agent. `faults` says how loading a slice ends: an error, None = never, absent = well."""

    def __init__(self, play: GatewayPlay, number: int, memory_mib: int, **more: Any) -> None:
        self.loop = play.loop
        self.play = play
        self.node_id = NodeId(f"{number:016x}")
        self.session = 0
        self.memory_mib = memory_mib
        self.memory_mib_used = 0
        """Of others: what DIN loads comes on top."""
        self.more = more
        self.clock_ms: int | None = None
        """What it says the time of day is; None = nothing."""
        self.name = f"node-{number}"
        self.is_alive = False
        self.is_mute = False
        self.held: set[Key] = set()
        self.sizes: dict[Key, int] = {}
        self.prepares: list[Prepare] = []
        self.unloads: list[Unload] = []
        self.faults: dict[int, DinError | None] = {}
        self.undialable: tuple[str, ...] = ()
        self.runs: list[Run] = []
        self.bodies: list[bytes] = []
        self.answers: Callable[[bytes], bytes | DinError | None] | None = None
        """What a slice makes of the bytes of its inputs; None = nobody answers."""
        self.output = "y"
        self.link: FakeLink | None = None
        self.counter = 0
        self._beating: asyncio.Task[None] | None = None

    @property
    def gateway(self) -> Gateway:
        return self.play.gateway

    def profile(self) -> NodeProfile:
        return NodeProfile(
            node_id=self.node_id,
            session=self.session,
            name=self.name,
            device_type=self.more.get("device_type", "x86_64"),
            cpu_model="cpu",
            cpu_isa=self.more.get("cpu_isa", ("avx2",)),
            cpu_cores=self.more.get("cpu_cores", 2.0),
            memory_mib=self.memory_mib,
            accelerator=self.more.get("accelerator"),
            backends=self.more.get("backends", ("onnxruntime", "adapter")),
            addresses=(f"tcp:10.0.0.1:{9000 + int(self.node_id, 16)}",),
        )

    def memory_mib_free(self) -> int:
        """What its system would say."""
        loaded = sum(self.sizes[key] for key in self.held)
        return self.memory_mib - self.memory_mib_used - loaded

    # What happens to it.

    def start(self) -> None:
        """A new session with nothing loaded."""
        assert not self.is_alive
        self.session += 1
        self.counter = 0
        self.is_alive, self.is_mute = True, False
        self.held.clear()
        self.register()
        self._dial()
        self._beating = self.loop.create_task(self._beat())

    def kill(self) -> None:
        """kill -9: the link breaks and the beats end."""
        self.is_alive = False
        self.held.clear()
        if self._beating is not None:
            self._beating.cancel()
        if self.link is not None:
            self.link.close("reset by peer")

    def leave(self) -> None:
        """An orderly end."""
        self.play.service.deregister_node(self.node_id, self.session, PEER)
        self.kill()

    def break_link(self) -> None:
        """The link alone breaks; the node dials again."""
        if self.link is not None:
            self.link.close("broken pipe")

    # What it does.

    def register(self) -> Admission:
        """Tell the gateway who it is."""
        body = encode_registration(self.profile(), CLUSTER)
        answer = decode_answer(self.play.service.register_node(body, PEER, self.clock_ms))
        assert isinstance(answer, Admission), answer
        return answer

    def _dial(self) -> None:
        if self.is_alive and (self.link is None or not self.link.is_open):
            self.link = FakeLink(self)
            self.gateway.links.on_open(self.link)

    def link_closed(self, link: FakeLink) -> None:
        if link is self.link and self.is_alive:
            self.loop.call_later(REDIAL_S, self._dial)

    async def _beat(self) -> None:
        schedule = self.gateway.effects.membership.schedule
        await asyncio.sleep(schedule.first_delay_ms(self.play.random) / 1000)
        while True:
            if not self.is_mute:
                self.beat()
            await asyncio.sleep(schedule.next_delay_ms(self.play.random) / 1000)

    def beat(self) -> None:
        """Say at once that it lives."""
        self.counter += 1
        health = NodeHealth(cpu_percent=10.0, memory_mib_free=max(self.memory_mib_free(), 0))
        beat = encode_heartbeat(
            Heartbeat(
                node_id=self.node_id,
                session=self.session,
                counter=self.counter,
                health=health,
            )
        )
        if decode_heartbeat_answer(self.play.service.heartbeat(beat, PEER)) == "register again":
            self.register()
            self._dial()

    def heard(self, link: FakeLink, message: AnyMessage, body: bytes = b"") -> None:
        if not self.is_alive or link is not self.link:
            return
        if self.is_mute and not isinstance(message, Unload):
            # A PREPARE may get lost in a stalled agent; an open link never loses an UNLOAD.
            return
        if isinstance(message, Prepare):
            self.prepares.append(message)
            key = (message.epoch, message.slice.index)
            self.sizes[key] = message.slice.memory_mib * message.workers
            self.loop.call_later(0 if key in self.held else LOAD_S, self._load, link, message)
        elif isinstance(message, Run):
            self._run(message, body)
        elif isinstance(message, Unload):
            self.unloads.append(message)
            self.held = {
                key
                for key in self.held
                if key[0] != message.epoch or message.slice_index not in (None, key[1])
            }

    def _load(self, link: FakeLink, message: Prepare) -> None:
        if not self.is_alive or not link.is_open or link is not self.link:
            return
        key = (message.epoch, message.slice.index)
        if message.slice.index in self.faults and key not in self.held:
            error = self.faults[message.slice.index]
            if error is not None:
                self.tell(
                    PrepareFailed(
                        message.epoch, message.slice.index, error.code, error.message, error.hint
                    )
                )
            return
        if key not in self.held and self.sizes[key] > self.memory_mib_free():
            short = Unavailable(f"{self.sizes[key]} MiB of memory do not fit")
            self.tell(PrepareFailed(message.epoch, message.slice.index, short.code, short.message))
            return
        self.held.add(key)
        self.tell(Prepared(message.epoch, message.slice.index, 1.0, 1.0, None, self.undialable))

    def _run(self, message: Run, body: bytes) -> None:
        """One output with what `answers` makes of the body, a failure, or nothing."""
        self.runs.append(message)
        self.bodies.append(body)
        made = self.answers(body) if self.answers is not None else None
        if isinstance(made, DinError):
            about = (message.request_id, message.attempt, message.slice_index, self.node_id)
            self.tell(Failed(*about, made.code, made.message, hint=made.hint))
        elif made is not None:
            tensor = TensorMeta(self.output, "UINT8", (len(made),), len(made))
            timings = (SliceTiming(message.slice_index, self.node_id, 0, 0, 1_000),)
            about = (message.request_id, message.attempt, message.slice_index)
            result = Result(*about, (tensor,), timings, 0)
            assert self.link is not None
            view = self.gateway.links.place_body(self.link, result, aligned(len(made)))
            if view is not None:
                view[: len(made)] = made
                self.gateway.links.on_message(self.link, result, view, ())

    def tell(self, message: AnyMessage) -> None:
        """Send to the gateway."""
        assert self.link is not None
        self.gateway.links.on_message(self.link, message, None, ())


class GatewayPlay:
    """One gateway with its nodes. Made inside a VirtualLoop."""

    def __init__(
        self, folder: Path, store: Any = None, schedule: BeatSchedule = FLEET, seed: int = 1
    ) -> None:
        loop = asyncio.get_event_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.folder = folder
        self.random = Random(seed)
        self.schedule = schedule
        self.store = store if store is not None else MemoryStore()
        self.carving = ScriptedCarving()
        self.reports = Reports()
        self.nodes: list[FakeNode] = []
        self.session = 0
        self.gateway: Gateway
        self.service: GatewayService

    async def start(self) -> None:
        """A gateway process begins; nodes that live dial it again."""
        self.session += 1
        artifacts = ArtifactFolder(self.folder / "artifacts", 1 << 30)
        self.gateway = Gateway(
            Effects(
                gateway_id=GATEWAY_ID,
                store=self.store,
                artifacts=artifacts,
                carving=self.carving,
                vault=Vault(self.folder / "trust"),
                membership=Membership(self.schedule),
                policy=policy_of("weighted-least-load"),
                terms=lambda: Terms(cluster=CLUSTER, gateway_id=GATEWAY_ID, links=("tcp:h:1",)),
                artifact_url=lambda host, **_: "http://gateway/",
                metrics=GatewayMetrics(),
                clock=self.loop.clock_ms,
                wall_clock_iso=lambda: "2026-01-01T00:00:00Z",
                wall_clock_ms=lambda: NOW_MS,
                random=self.random,
                report=self.reports,
                result_bytes_max=1 << 20,
            )
        )
        self.service = GatewayService(
            self.gateway, cluster=CLUSTER, discovery_mode="unicast", state="/state"
        )
        await self.gateway.start()

    async def stop(self) -> None:
        await self.gateway.stop()

    async def crash(self) -> None:
        """The gateway's process dies and another one starts."""
        old = self.gateway
        await old.stop()
        for node in self.nodes:
            if node.link is not None and node.link.is_open:
                node.link.is_open = False
                self.loop.call_later(REDIAL_S, node._dial)
        await self.start()

    def add(self, memory_mib: int = 1_000, **more: Any) -> FakeNode:
        """A node joins."""
        node = FakeNode(self, len(self.nodes) + 1, memory_mib, **more)
        self.nodes.append(node)
        node.start()
        return node

    async def register(self, partition: Partition, model_id: str = "faces", **more: Any) -> Any:
        """Register a model that is carved into this partition; not verified unless asked."""
        more.setdefault("verify", False)
        source = f"{abs(hash((model_id, len(self.carving.partitions)))) % 16**12:064x}"
        (self.gateway.effects.artifacts.path / source).write_bytes(b"onnx")
        self.carving.partitions[source] = partition
        return await self.service.register_model(
            RegisterModel(model_id=model_id, source_sha256=source, **ordered(**more))
        )

    def state(self, model_id: str = "faces") -> str:
        return self.service.inspect_model(model_id).state

    def holders(self, index: int = 0, model_id: str = "faces") -> set[str]:
        """Nodes whose replica may be used now."""
        serving = self.gateway.models.serving(model_id, None)
        return {self.gateway.fleet.name_of(node) for node in serving.replicas(index)}

    async def until_ready(self, model_id: str = "faces", seconds_max: float = 10.0) -> None:
        """Wait, in virtual time."""
        end = self.loop.time() + seconds_max
        while not self.service.is_ready(model_id):
            assert self.loop.time() < end, self.story(model_id)
            await asyncio.sleep(0.05)

    def story(self, model_id: str = "faces") -> str:
        view = self.service.inspect_model(model_id)
        nodes = [
            (each.profile.name, each.status, each.reason) for each in self.gateway.fleet.members()
        ]
        return f"{view.state}: {view.reason}; {nodes}; {view.slices}"

    def broken_promises(self) -> list[str]:
        """Everything that must never be, as words."""
        found: list[str] = []
        for holding in self.gateway.deployer.holdings():
            serving = holding.serving
            for index in range(len(holding.partition.slices)):
                for node_id in serving.replicas(index):
                    node = self.nodes[int(node_id, 16) - 1]
                    where = f"slice {index} of {serving.deployment.epoch} on {node.name}"
                    if not self.gateway.fleet.is_routable(node_id):
                        found.append(f"{where}: the node is not routable")
                    if node.is_alive and (serving.deployment.epoch, index) not in node.held:
                        found.append(f"{where}: it has not loaded it in session {node.session}")
        for node in self.nodes:
            promised = self.gateway.promised_mib(node.node_id)
            if promised > node.memory_mib:
                found.append(f"{node.name} was promised {promised} of {node.memory_mib} MiB")
        return found


def resized(partition: Partition, memory_mib: int) -> Partition:
    """The same with slices of another size."""
    slices = tuple(replace(part, memory_mib=memory_mib) for part in partition.slices)
    return replace(partition, slices=slices)
