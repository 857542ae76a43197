"""Utilisation and memory traffic of each core over a short window, measured only when asked.

The kernel counts a core's time in ticks, of 10 ms as a rule: a window of 100 ms has steps of ten
percent. Accelerators are shown by the newest sample of their sensor, which is no window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from din.domain.heat import CORES_MAX, CoreKind
from din.system.accelerator_facts import MIB, AcceleratorSample
from din.system.clock import monotonic_ms
from din.system.memory_traffic import NoTraffic, Open, Traffic
from din.system.readings import read_text
from din.wire.messages import HeatCore

BANDWIDTH: Final = "bandwidth_percent"
_IDLE, _WAIT = 3, 4
"""Columns of /proc/stat in which a core does nothing."""
_COUNTED: Final = 8
"""The two behind them, of guests, are counted in the first two already."""


class HeatWindow:
    """Begins when it is made; `end` answers once."""

    def __init__(
        self,
        core_mask: int,
        bandwidth_mib_per_second_max: int | None = None,
        root: Path = Path("/"),
        open_counter: Open | None = None,
    ) -> None:
        self._mask = core_mask
        self._root = root
        self._most = bandwidth_mib_per_second_max
        self.unknown: dict[str, str] = {}
        """What is not measured, and why."""
        self._traffic: Traffic | None = None
        self._begin_traffic(open_counter)
        self._began_ms, self._before = monotonic_ms(), self._times()

    def end(self, sample: AcceleratorSample | None, kind: CoreKind = "gpu") -> list[HeatCore]:
        """Every core that was asked for, at most CORES_MAX; the accelerator's last."""
        after, took_ms = self._times(), max(1, monotonic_ms() - self._began_ms)
        bandwidth = self._bandwidth_percent(took_ms)
        cores = [
            HeatCore(core, "cpu", _busy_percent(self._before.get(core), times), bandwidth)
            for core, times in after.items()
        ]
        if not cores:
            self.unknown["percent"] = "this kernel does not tell times of each core"
        cores.extend(self._accelerator_cores(sample, kind))
        return cores[:CORES_MAX]

    def _accelerator_cores(
        self, sample: AcceleratorSample | None, kind: CoreKind
    ) -> list[HeatCore]:
        if sample is None:
            return []
        percents: tuple[float | None, ...] = sample.core_percents or (sample.percent,)
        return [
            HeatCore(core, kind, percent, sample.bandwidth_percent)
            for core, percent in enumerate(percents)
            if self._mask >> core & 1
        ]

    def _begin_traffic(self, open_counter: Open | None) -> None:
        if self._most is None:
            self.unknown[BANDWIDTH] = (
                "how much this machine's memory can carry is not known: "
                "set memory_mib_per_second on the node"
            )
            return
        try:
            self._traffic = Traffic(tuple(self._times(is_masked=False)), self._root, open_counter)
        except NoTraffic as reason:
            self.unknown[BANDWIDTH] = str(reason)

    def _bandwidth_percent(self, took_ms: int) -> float | None:
        """Of all cores together: they share the memory."""
        if self._traffic is None or self._most is None:
            return None
        try:
            rate = self._traffic.nbytes() / MIB / took_ms * 1000
        except OSError as error:
            self.unknown[BANDWIDTH] = f"its counter cannot be read: {error.strerror}"
            return None
        finally:
            self._traffic.close()
            self._traffic = None
        return round(min(100.0, 100 * rate / self._most), 1)

    def _times(self, *, is_masked: bool = True) -> dict[int, tuple[int, int]]:
        """(busy, all) ticks by core."""
        found: dict[int, tuple[int, int]] = {}
        for line in (read_text(self._root / "proc/stat") or "").splitlines():
            name, *words = line.split()
            core = name.removeprefix("cpu")
            if not (name.startswith("cpu") and core.isdecimal()):
                continue
            if is_masked and not self._mask >> int(core) & 1:
                continue
            ticks = [int(each) for each in words[:_COUNTED] if each.isdecimal()]
            if len(ticks) > _WAIT:
                whole = sum(ticks)
                found[int(core)] = (whole - ticks[_IDLE] - ticks[_WAIT], whole)
        return found


def _busy_percent(before: tuple[int, int] | None, after: tuple[int, int]) -> float | None:
    """None for a core that came meanwhile, or whose clock did not tick in the window."""
    if before is None or after[1] <= before[1]:
        return None
    share = (after[0] - before[0]) / (after[1] - before[1])
    return round(100 * min(max(share, 0.0), 1.0), 1)
