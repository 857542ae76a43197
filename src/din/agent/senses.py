"""How this node feels: its sensors, what its governor makes of them, and the machine's watchdog."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from din.agent.cooling import Cooling
from din.agent.heating import Heating
from din.agent.sensor_news import SensorNews
from din.config import NodeConfig
from din.domain.node import NodeHealth
from din.system.sensors import Sensors
from din.system.temperature import is_path
from din.wire.messages import AnyMessage

if TYPE_CHECKING:
    from din.system.watchdog_device import WatchdogDevice

Report = Callable[..., None]


class Senses:
    """Of one node. All calls in the loop's thread."""

    def __init__(
        self,
        config: NodeConfig,
        sensors: Sensors,
        zygote_pid: Callable[[], int | None],
        tell: Callable[[AnyMessage], bool],
        report: Report,
    ) -> None:
        self._config = config
        self._sensors = sensors
        self._report = report
        self._news = SensorNews(sensors.troubles, report)
        self._cooling = Cooling(
            sensors,
            zygote_pid,
            report,
            limit_c=config.temp_limit_c,
            is_governed=config.thermal_governor,
            alive=self._alive,
        )
        self.heating = Heating(
            tell, sensors.accelerator, sensors.views, config.memory_mib_per_second
        )
        self._watchdog: WatchdogDevice | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to govern, and to feed the watchdog where one was asked for; the sensors poll
        already. Raises Denied or Unavailable when the watchdog cannot be had."""
        named = self._config.temp_sensor
        if named and is_path(named) and not os.access(named, os.R_OK):
            warning = f"temperature sensor {named} cannot be read, the temperature stays unknown"
            self._report("sensor_warning", warning=warning)
        if self._config.watchdog_device:
            from din.system.watchdog_device import WatchdogDevice  # few nodes have one

            self._watchdog = WatchdogDevice(self._config.watchdog_device, self._report)
            self._watchdog.start()
            self._report("watchdog_armed", timeout_s=self._watchdog.timeout_s)
        self._cooling.start(loop)

    def close(self) -> None:
        """Govern no more, and disarm the watchdog."""
        self._cooling.close()
        self.heating.close()
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None

    def health(self, now_ms: float, queue_length: int) -> NodeHealth:
        """For a heartbeat; sensors in trouble are told to the log."""
        self._news.look(now_ms)
        return self._sensors.health(
            queue_length, self._cooling.share, is_governed=self._cooling.is_capping
        )

    def _alive(self) -> None:
        if self._watchdog is not None:
            self._watchdog.alive()
