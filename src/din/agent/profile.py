"""Who this node says it is: fingerprint of the machine, under the operator's settings."""

from __future__ import annotations

from typing import Final

from din.config import NodeConfig
from din.config_forms import default_node_name
from din.domain.device import parse_device_type
from din.domain.node import NodeId, NodeProfile
from din.errors import UsageError
from din.system.accelerator_facts import Accelerator
from din.system.accelerators import AcceleratorReader, find_accelerator
from din.system.fingerprint import take_fingerprint
from din.system.identity import Identity
from din.system.patience import answer_within
from din.system.sensors import SensorSettings
from din.wire.messages import PROTOCOL_VERSION

ACCELERATOR_S_MAX: Final = 30.0
"""More than all tools together may take before they are given up."""
NPU_CORE_LABEL: Final = "npu-core"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def check_host(config: NodeConfig, *, has_joined: bool) -> None:
    """Raises UsageError when plain text would leave this host without being asked for."""
    if config.host not in LOOPBACK and not (config.insecure_network or has_joined):
        raise UsageError(
            f"host {config.host!r} is not loopback: links would cross the network in plain text",
            hint="join the cluster first (din node join -), or say --insecure-network",
        )


def look_for_accelerator(
    config: NodeConfig,
) -> tuple[AcceleratorReader, Accelerator] | tuple[None, None]:
    """The accelerator and what it is, when there is one. Raises DeadlineExceeded: tools are given
    up in time, but a driver in trouble may hold whoever opens its files."""

    def look() -> tuple[AcceleratorReader, Accelerator] | tuple[None, None]:
        reader = find_accelerator(is_nvml_wanted=config.gpu_monitoring == "nvml")
        return (None, None) if reader is None else (reader, reader.describe())

    return answer_within(ACCELERATOR_S_MAX, "the accelerator's driver", look)


def make_profile(
    config: NodeConfig,
    identity: Identity,
    accelerator: Accelerator | None,
    addresses: tuple[str, ...],
    *,
    has_joined: bool = False,
    sandbox_level: int | None = None,
) -> NodeProfile:
    """The profile for the registration. Raises UsageError for a bad device type."""
    found = take_fingerprint(accelerator)
    device_type = str(parse_device_type(config.device_type or found.device_type))
    memory_mib = config.memory_mib if config.memory_mib is not None else found.memory_mib
    return NodeProfile(
        node_id=NodeId(identity.node_id),
        session=identity.session,
        name=config.name or default_node_name("node"),
        device_type=device_type,
        cpu_model=found.cpu_model,
        cpu_isa=found.cpu_isa,
        cpu_cores=config.cpu_cores if config.cpu_cores is not None else found.cpu_cores,
        memory_mib=memory_mib,
        accelerator=found.accelerator,
        accelerator_memory_mib=(
            config.gpu_memory_mib
            if config.gpu_memory_mib is not None
            else found.accelerator_memory_mib
        ),
        versions=found.versions,
        labels=labels_of(config),
        addresses=addresses,
        fingerprint_sha256=found.sha256,
        protocol_versions=(PROTOCOL_VERSION,),
        is_insecure_network=config.insecure_network and not has_joined,
        sandbox_level=sandbox_level,
    )


def sensor_settings(config: NodeConfig) -> SensorSettings:
    """What the operator says about sensors. Raises UsageError."""
    return SensorSettings(
        temperature=config.temp_sensor,
        is_temperature_disabled=config.disable_temp_monitoring,
        poll_interval_ms=config.temp_poll_interval_ms,
    )


def labels_of(config: NodeConfig) -> dict[str, str]:
    """The operator's labels; NPU cores are one more, so that slices may ask for them."""
    if config.npu_core is None:
        return config.labels
    return {NPU_CORE_LABEL: str(config.npu_core), **config.labels}
