"""Every knob of gateway and node: default, limits, unit and meaning, in one place.

Where values come from (flags, environment, files) is the command line's business. Programs get
their settings whole, as JSON in one environment variable, so that the agent needs neither YAML nor
a command line parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from din.config_forms import (
    Cores,
    Count,
    DiscoveryMode,
    ForeignSetting,
    Isolate,
    Label,
    LimitC,
    LogFormat,
    LogLevel,
    Mebibytes,
    NodeName,
    Patterns,
    Port,
    Rate,
    Section,
    Text,
)
from din.errors import UsageError

HANDOVER_VARIABLE: Final = "DIN_CONFIG_JSON"
"""Environment variable in which a program finds its settings as JSON."""

GIVEN_VARIABLE: Final = "DIN_GIVEN_JSON"
"""Environment variable in which a program finds, as JSON, those of its settings that are in no file
and no variable: what it reads its files again with."""


class GatewayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one gateway."""

    host: Annotated[Text, Meta(description="address to listen on; off loopback with TLS only")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, Meta(description="port of plain HTTP, on loopback; 0 = any free one")] = (
        8000
    )
    link_port: Annotated[
        Port, Meta(description="port that the links of nodes come to; 0 = any free one")
    ] = 0
    cluster: Annotated[Label, Meta(description="name that nodes look for")] = "default"
    discovery_mode: Annotated[
        DiscoveryMode, Meta(description="auto announces by multicast and serves unicast as well")
    ] = "auto"
    state_dir: Annotated[
        Text, Meta(description="where everything durable lies; empty = $XDG_STATE_HOME/din")
    ] = ""
    tls: Annotated[
        bool, Meta(description="listen for TLS as well; by itself when host is not loopback")
    ] = False
    tls_port: Annotated[Port, Meta(description="port of TLS on host; 0 = any free one")] = 8443
    insecure_network: Annotated[
        bool, Meta(description="allow plain text off loopback, without any authentication")
    ] = False
    insecure: Annotated[
        bool, Meta(description="read and run models even where nothing here confines who does")
    ] = False
    require_key: Annotated[
        bool, Meta(description="ask for an API key on the plain port of this machine as well")
    ] = False
    own_node_dir: Annotated[
        Text,
        Meta(
            description="state directory of this user's node on this machine: off loopback the "
            "gateway gives it a certificate as it starts; empty = none, and set by `din up`"
        ),
    ] = ""
    own_node_name: Annotated[
        NodeName, Meta(description="of the node of own_node_dir; empty = from the host name")
    ] = ""
    late_renewal_days: Annotated[
        int,
        Meta(
            ge=0,
            le=3650,
            description="so long after its certificate's end a machine that was off may renew it; "
            "later it needs a token",
        ),
    ] = 30
    operators_allowed: Annotated[
        Patterns,
        Meta(description="operators that models may have, by domain and name; * = any letters"),
    ] = ("ai.onnx.*", "com.microsoft.*")
    idle_unload_s: Annotated[
        int,
        Meta(
            ge=0,
            le=31_536_000,
            description="a model that nobody asked for so long gives its memory back, and the next "
            "request waits until it is loaded again; 0 = it stays loaded",
        ),
    ] = 0
    node_heartbeat_interval_ms: Annotated[
        int, Meta(ge=50, le=3_600_000, description="between two beats of a node; lost after 3")
    ] = 3000
    node_heartbeat_jitter_ms: Annotated[
        int, Meta(ge=0, le=1_800_000, description="spread of beats; interval x 0.15")
    ] = 450
    interfaces_allowed: Annotated[
        Patterns,
        Meta(description="interfaces whose addresses others are told, such as eth*, and no others"),
    ] = ()
    interfaces_denied: Annotated[
        Patterns, Meta(description="interfaces whose addresses nobody is told, such as wwan*")
    ] = ()
    policy: Annotated[
        Literal["weighted-least-load", "seed-strict", "weighted-least-load-literal"],
        Meta(
            description="how nodes are chosen: by queue, time, health and CPU load; seed-strict "
            "takes none above 30 % CPU or with less than 1.5 GB of accelerator memory free; "
            "weighted-least-load-literal is for comparison only"
        ),
    ] = "weighted-least-load"
    isolate: Annotated[
        Isolate,
        Meta(
            description="tenant = requests of different tenants never share a worker; memory grows "
            "with each tenant that uses a shared model"
        ),
    ] = "none"
    direct: Annotated[
        bool,
        Meta(
            description="feed workers on this host through shared memory; false = by their agents"
        ),
    ] = True
    body_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**32, description="size of one inference request")
    ] = 64 * 1024 * 1024
    buffered_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**40, description="size of all inference requests in memory")
    ] = 512 * 1024 * 1024
    result_bytes_max: Annotated[
        int, Meta(ge=1024, le=2**32, description="size of one inference result")
    ] = 256 * 1024 * 1024
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="HTTP connections at once")
    ] = 4096
    artifact_quota_mib: Annotated[
        int, Meta(ge=1, le=2**24, description="disk that model files may take")
    ] = 8192
    slicing_cache_enabled: Annotated[
        bool, Meta(description="keep what cutting a model made for the next registration of it")
    ] = False
    slicing_cache_size_mb: Annotated[
        int, Meta(ge=1, le=2**24, description="slices and records that the slicing cache keeps")
    ] = 128
    slicing_cache_evict_policy: Annotated[
        Literal["lru"],
        Meta(description="what goes when it is full: what was not asked for longest"),
    ] = "lru"
    encrypt_models: Annotated[
        Literal["auto", "always", "never"],
        Meta(description="seal models that do not say; auto = when other machines can join"),
    ] = "auto"
    slice_lease_ms: Annotated[
        int,
        Meta(ge=1000, le=86_400_000, description="how long nodes keep sealed slices without us"),
    ] = 120_000
    log_level: Annotated[
        LogLevel, Meta(description="lines below it are not written; a reload changes it")
    ] = "info"
    log_format: Annotated[
        LogFormat, Meta(description="auto = text on a terminal, else one JSON object a line")
    ] = "auto"

    @property
    def is_tls(self) -> bool:
        """Whether the TLS listener is on: asked for, or needed off loopback."""
        return self.tls or not (self.insecure_network or is_loopback(self.host))

    @property
    def plain_host(self) -> str:
        """Where plain HTTP listens: never off loopback, unless that was accepted."""
        is_kept = self.insecure_network or is_loopback(self.host)
        return self.host if is_kept else "127.0.0.1"


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one node."""

    name: Annotated[
        NodeName, Meta(description="unique in the cluster; empty = from the host name")
    ] = ""
    device_type: Annotated[
        Text, Meta(description="arch-accelerator-toolkit, compared exactly; empty = detected")
    ] = ""
    host: Annotated[Text, Meta(description="address that peers dial")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="port for peers; 0 = any free one")] = 8080
    cluster: Annotated[Label, Meta(description="name of the cluster to join")] = "default"
    discovery_mode: Annotated[
        DiscoveryMode, Meta(description="auto tries multicast for 5 s, then unicast")
    ] = "auto"
    gateway: Annotated[
        tuple[str, ...],
        Meta(max_length=16, description="gateway URLs to ask, and no others; empty = look for one"),
    ] = ()
    state_dir: Annotated[
        Text, Meta(description="empty = nodes/<name> below the gateway's state_dir")
    ] = ""
    insecure_network: Annotated[
        bool, Meta(description="allow plain text off loopback, without any authentication")
    ] = False
    insecure: Annotated[
        bool, Meta(description="run workers even where nothing on this machine confines them")
    ] = False
    backends: Annotated[
        tuple[Label, ...],
        Meta(max_length=16, description="engines to offer, and no others; empty = all that work"),
    ] = ()
    interfaces_allowed: Annotated[
        Patterns,
        Meta(description="interfaces whose addresses others are told, such as eth*, and no others"),
    ] = ()
    interfaces_denied: Annotated[
        Patterns, Meta(description="interfaces whose addresses nobody is told, such as wwan*")
    ] = ()
    cpu_cores: Annotated[
        Cores | None, Meta(description="cores to offer; null = affinity or quota, the smaller")
    ] = None
    memory_mib: Annotated[
        Mebibytes | None, Meta(description="memory to offer; null = all there is")
    ] = None
    worker_memory_factor: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="a worker may take so many times the memory that its slice needs, and "
            "256 MiB more; 0 = as much as the machine has",
        ),
    ] = 4.0
    worker_requests_max: Annotated[
        int,
        Meta(
            ge=0,
            le=2**53,
            description="a worker is replaced after so many requests, its successor first; 0 = "
            "never",
        ),
    ] = 0
    slice_quota_mib: Annotated[
        int, Meta(ge=1, le=2**24, description="disk that files of slices may take")
    ] = 16384
    gpu_memory_mib: Annotated[
        Mebibytes | None, Meta(description="accelerator memory to offer; null = detected")
    ] = None
    npu_core: Annotated[Count | None, Meta(description="NPU cores; null = detected")] = None
    temp_sensor: Annotated[
        Text,
        Meta(
            description="file with millidegrees Celsius, tmp102:BUS[:ADDRESS] or ipmi:SENSOR; "
            "empty = detected"
        ),
    ] = ""
    disable_temp_monitoring: Annotated[
        bool, Meta(description="never read a temperature (it is then unknown, not 0)")
    ] = False
    temp_poll_interval_ms: Annotated[
        int, Meta(ge=100, le=3_600_000, description="between two readings of the temperature")
    ] = 500
    gpu_monitoring: Annotated[
        Literal["nvml", "nvidia_smi"],
        Meta(description="where GPU load comes from; NVML needs driver 450.80.02 or newer"),
    ] = "nvml"
    thermal_governor: Annotated[
        bool, Meta(description="take cores from workers before the hardware slows down")
    ] = True
    temp_limit_c: Annotated[
        LimitC | None,
        Meta(
            description="where the governor begins; null = 5 below where the kernel says that the "
            "hardware slows down, else 75",
        ),
    ] = None
    memory_mib_per_second: Annotated[
        Rate | None,
        Meta(
            description="what this machine's memory can carry, for the heat of its cores; null = "
            "not known (two channels of DDR4-3200: 48828)"
        ),
    ] = None
    watchdog_device: Annotated[
        Text,
        Meta(
            description="such as /dev/watchdog: the machine restarts when this node stands still; "
            "empty = none"
        ),
    ] = ""
    labels: Annotated[
        dict[str, str], Meta(max_length=32, description="free words that slices may ask for")
    ] = {}
    foreign: Annotated[
        tuple[ForeignSetting | Text, ...],
        Meta(
            max_length=8,
            description="servers of others, by URL, whose models it brings in (docs/foreign.md)",
        ),
    ] = ()
    runner: Annotated[
        Literal["", "runc", "crun"],
        Meta(
            description="OCI runtime that starts servers with a `container`; empty = none is "
            "started (docs/foreign.md)"
        ),
    ] = ""
    runner_device: Annotated[
        tuple[Text, ...],
        Meta(max_length=64, description="devices of /dev that those servers may use"),
    ] = ()
    log_level: Annotated[
        LogLevel, Meta(description="lines below it are not written; a reload changes it")
    ] = "info"
    log_format: Annotated[
        LogFormat, Meta(description="auto = text on a terminal, else one JSON object a line")
    ] = "auto"


class ClientConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the command line shows a gateway, and knows it by."""

    api_key_file: Annotated[
        Text, Meta(description="file with the API key that commands show; never the key itself")
    ] = ""
    ca_file: Annotated[
        Text, Meta(description="authority of an https gateway, in PEM; empty = this machine's own")
    ] = ""


Config = GatewayConfig | NodeConfig
AnyConfig = TypeVar("AnyConfig", GatewayConfig, NodeConfig)
SECTIONS: Final[dict[Section, type[Config | ClientConfig]]] = {
    "gateway": GatewayConfig,
    "node": NodeConfig,
    "client": ClientConfig,
}


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's alone."""
    try:
        found = ip_address(host)
    except ValueError:
        return host == "localhost"
    # What comes by IPv4 to a socket of both.
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def check_gateway_network(config: GatewayConfig) -> None:
    """Raises UsageError when both plain text and TLS are wanted off this machine: links cannot be
    both, and who speaks plain text would be let in anyway."""
    if config.tls and config.insecure_network:
        raise UsageError(
            "tls and insecure_network are both on: with TLS only joined nodes have links, in plain "
            "text everybody has",
            hint="leave out --insecure-network (machines join by a token: din token create), or "
            "--tls",
        )


def encode_config(config: Config) -> str:
    """Settings as the JSON that a started program reads."""
    return msgspec.json.encode(config).decode()


def received_config(struct: type[AnyConfig], environment: Mapping[str, str]) -> AnyConfig:
    """Settings that the starter handed over in the environment. Raises UsageError."""
    text = environment.get(HANDOVER_VARIABLE)
    if text is None:
        program = "gateway" if struct is GatewayConfig else "node"
        raise UsageError(
            f"no settings in {HANDOVER_VARIABLE}", hint=f"start it with `din {program} start`"
        )
    try:
        return msgspec.json.decode(text, type=struct)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"settings in {HANDOVER_VARIABLE} are broken: {error}") from None
