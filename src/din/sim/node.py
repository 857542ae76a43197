"""A simulated machine: what it is, how it feels, whether it can be heard."""

from __future__ import annotations

from random import Random
from typing import Final

from din.domain.node import NodeHealth, NodeId, NodeProfile
from din.sim.scenario import SITES

AMBIENT_C: Final = 35.0
DEVICE_TYPES: Final = ("x86_64", "x86_64-cuda11.8-trt8.6", "aarch64-ascend310p-cann6.3")


class SimNode:
    """One machine. `is_alive` is the truth that the gateway has to find out."""

    def __init__(self, number: int, random: Random) -> None:
        self.node_id = NodeId(f"{number:016x}")
        self.number = number
        self.site = number % SITES
        self.memory_mib = random.choice((2048, 4096, 8192))
        self.device_type = random.choice(DEVICE_TYPES)
        self.has_sensor = random.random() < 0.7
        self.speed = random.uniform(0.5, 2.0)
        self.random = random
        self.session = 0
        self.counter = 0
        self.link_id = 0
        self.kills = 0
        self.is_alive = False
        self.is_silent = False
        """Runs but cannot be heard nor reached: it stalls or its site is cut off."""
        self.heard_ms = 0
        """When the gateway last got anything of the living session."""
        self.load = random.random() * 0.6
        self.temperature_c = AMBIENT_C

    def profile(self) -> NodeProfile:
        """What it registers with."""
        return NodeProfile(
            node_id=self.node_id,
            session=self.session,
            name=f"node-{self.number}",
            device_type=self.device_type,
            cpu_model="simulated",
            cpu_isa=(),
            cpu_cores=4,
            memory_mib=self.memory_mib,
            backends=("onnxruntime",),
            labels={"site": str(self.site)},
        )

    def sample(self) -> NodeHealth:
        """How it feels now: a load that wanders, and a temperature that follows it."""
        self.load = min(max(self.load + self.random.uniform(-0.1, 0.1), 0.0), 1.0)
        self.temperature_c += 0.2 * (AMBIENT_C + 45.0 * self.load - self.temperature_c)
        return NodeHealth(
            cpu_percent=round(self.load * 100, 1),
            memory_mib_free=self.memory_mib,
            temperature_c=round(self.temperature_c, 1) if self.has_sensor else None,
        )
