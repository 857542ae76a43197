"""What is known of a node: who it is, what it can, how it feels, where it stands."""

from __future__ import annotations

from typing import Final, Literal, NewType, get_args

from msgspec import Struct

from din.domain.foreign import ForeignServer

NodeId = NewType("NodeId", str)
"""Identity made once on the node and kept on its disk: 16 lowercase hex digits."""

SLICES_HELD_MAX: Final = 256
"""Slices that one node holds or loads, of all models together."""

ZSTD_WORD: Final = "zstd"
"""Nodes that have it among their versions read and write what crosses compressed."""

NodeStatus = Literal["joining", "ready", "suspect", "lost", "draining"]
"""joining: registered, no link yet. ready: routable. suspect: silent or failed, not routable.
lost: gone from membership. draining: takes nothing new, serves what it holds until
other nodes do."""


SpeedLimit = Literal[
    "undervoltage",
    "frequency_capped",
    "throttled",
    "soft_temperature_limit",
    "undervoltage_before",
    "frequency_capped_before",
    "throttled_before",
    "soft_temperature_limit_before",
    "governor",
]
"""Why a node is slower than it could be; `..._before` = since its start, not now."""
SPEED_LIMITS: Final[tuple[SpeedLimit, ...]] = get_args(SpeedLimit)
"""By bit on the wire, the lowest first."""


class NodeProfile(Struct, frozen=True, kw_only=True):
    """What a node says of itself when it registers. Static while its session lives."""

    node_id: NodeId
    session: int
    """Counts up at each start of the same node id (persisted): a newer session evicts the older."""
    name: str
    """RFC 1123 label, unique in the cluster; the registry makes clones unique by a suffix."""
    device_type: str
    cpu_model: str
    cpu_isa: tuple[str, ...]
    """Instruction sets that change numeric results or speed: avx2, avx512_vnni, neon, ..."""
    cpu_cores: float
    """The smaller of affinity and cgroup quota, so 0.5 is possible."""
    memory_mib: int
    accelerator: str | None = None
    accelerator_memory_mib: int | None = None
    backends: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    """Versions that decide compatibility, e.g. {"din": "0.1.0", "onnxruntime": "1.32.0"}."""
    labels: dict[str, str] = {}
    addresses: tuple[str, ...] = ()
    """Where peers dial it: `unix:/path` first (same host only), then `tcp:host:port`."""
    fingerprint_sha256: str = ""
    """First 16 hex digits of SHA256 over the hardware part: two clones share it."""
    protocol_versions: tuple[int, ...] = (1,)
    is_insecure_network: bool = False
    """It runs with `insecure_network` and has not joined: its links are plain text, to anybody."""
    sandbox_level: int | None = None
    """How far its workers are confined, 0 to 3 (decision 0014); None = it does not say."""


class NodeHealth(Struct, frozen=True, kw_only=True):
    """One sample. None = not measured, never 0."""

    cpu_percent: float | None = None
    memory_mib_free: int | None = None
    accelerator_percent: float | None = None
    accelerator_memory_mib_free: int | None = None
    utilization_source: str | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    queue_length: int = 0
    """Requests accepted and not finished on the node: counted, not measured."""
    capacity_percent: int | None = None
    """Share of its speed that it has now: below 100 its governor or its hardware slows it down.
    None = nothing there could tell."""
    limits: tuple[SpeedLimit, ...] = ()
    """Why it is slower, or was since its start."""
    swap_mib_used: int | None = None


class FleetNode(Struct, frozen=True, kw_only=True):
    """A node as the gateway knows it now: the row that routing, planner and people read."""

    profile: NodeProfile
    health: NodeHealth
    status: NodeStatus
    health_score: float = 1.0
    """0..1; 1 = normal, falls on missed beats and errors."""
    seen_ms: int = 0
    """Receiver's monotonic clock at the last beat."""
    memory_mib_reserved: int = 0
    """Memory promised to slices placed there."""
    slices_held: int = 0
    """Slices placed there, loaded or loading: at most SLICES_HELD_MAX."""
    foreign: tuple[ForeignServer, ...] = ()
    """Servers behind it, as it said last."""
    takes_grants: bool = True
    """The gateway can grant it keys of sealed slices: it has a certificate, or is at home."""
