"""The governor's orders reach the workers; the watchdog lives as long as the agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from din.agent import cooling
from din.agent.cooling import Cooling
from din.agent.senses import Senses
from din.config import NodeConfig
from din.errors import Unavailable
from din.execution.governor import CALM_MS, STALE_MS
from din.system.affinity import confine, descendants
from din.system.sensors import Sensors, SensorSettings
from din.system.temperature import ThrottlePoint

TREE = """
import os, subprocess, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""
CORES = sorted(os.sched_getaffinity(0))
several_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core cannot be divided")


class Thermometer:
    def __init__(self, degrees: float | None = 50.0, throttle: ThrottlePoint | None = None) -> None:
        self.degrees = degrees
        self.throttle_point = throttle

    def temperature_c(self) -> float | None:
        return self.degrees


class Log(list):
    def __call__(self, event: str, **facts: object) -> None:
        self.append((event, facts))


@several_cores
def test_workers_lose_cores_while_it_is_hot_and_get_them_back() -> None:
    zygote = subprocess.Popen(
        [sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert zygote.stdout is not None
    worker = int(zygote.stdout.readline())
    log, thermometer = Log(), Thermometer()
    try:
        found = Cooling(thermometer, lambda: zygote.pid, log, limit_c=80.0)
        found.look(0)
        assert (found.share, found.is_capping, log) == (1.0, False, [])
        assert sorted(os.sched_getaffinity(worker)) == CORES
        thermometer.degrees = 86.0
        found.look(10_000)
        kept = CORES[: len(CORES) // 2]
        assert sorted(os.sched_getaffinity(worker)) == kept
        assert sorted(os.sched_getaffinity(zygote.pid)) == CORES, "new workers count all cores"
        assert log[-1][0] == "thermal_governor"
        assert (log[-1][1]["cores"], log[-1][1]["cores_of"]) == (len(kept), len(CORES))
        os.sched_setaffinity(worker, CORES)
        found.look(12_000)
        assert sorted(os.sched_getaffinity(worker)) == kept, "one that is new is confined as well"
        thermometer.degrees = 40.0
        for now_ms in range(14_000, 20_000 + 3 * CALM_MS, 2000):
            found.look(now_ms)
        assert sorted(os.sched_getaffinity(worker)) == CORES
        assert not found.is_capping
    finally:
        zygote.communicate()


def test_every_thread_of_a_process_is_moved_and_dead_ones_are_passed_over() -> None:
    zygote = subprocess.Popen(
        [sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert zygote.stdout is not None
    worker = int(zygote.stdout.readline())
    try:
        assert descendants(zygote.pid) == [worker]
        assert confine([zygote.pid], CORES) == 2
    finally:
        zygote.communicate()
    assert descendants(zygote.pid) == []
    assert confine([zygote.pid], CORES) == 0


def test_without_a_temperature_nothing_is_governed_and_what_was_held_back_comes_back() -> None:
    log, thermometer = Log(), Thermometer(None)
    found = Cooling(thermometer, lambda: None, log)
    found.look(0)
    assert (found.share, log) == (1.0, [])
    thermometer.degrees = 99.0
    found.look(1000)
    assert found.is_capping
    thermometer.degrees = None
    found.look(2000 + STALE_MS)
    assert not found.is_capping
    assert "not known" in str(log[-1][1]["reason"])


def test_the_limit_is_the_operators_or_the_hardwares() -> None:
    for limit_c, point, degrees, is_capping in (
        (60.0, ThrottlePoint(95.0, is_critical=False), 61.0, True),
        (None, ThrottlePoint(95.0, is_critical=False), 84.0, False),
        (None, ThrottlePoint(95.0, is_critical=False), 90.0, True),
        (None, ThrottlePoint(110.0, is_critical=True), 95.0, True),
        (None, None, 75.0, True),
    ):
        found = Cooling(Thermometer(degrees, point), lambda: None, Log(), limit_c=limit_c)
        found.look(0)
        assert found.is_capping is is_capping, (limit_c, point, degrees)


def test_a_cpuset_that_lost_cores_is_looked_at_again(monkeypatch) -> None:
    def gone(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(cooling, "confine", gone)
    found = Cooling(Thermometer(99.0), os.getpid, Log())
    found.look(0)
    assert found._cores == tuple(CORES)


def senses(tmp_path: Path, log: Log, **settings: object) -> Senses:
    config = NodeConfig(**settings)  # type: ignore[arg-type]
    return Senses(
        config, Sensors(SensorSettings(), root=tmp_path), lambda: None, lambda _: True, log
    )


def test_a_watchdog_is_fed_from_start_to_end_and_then_disarmed(tmp_path: Path) -> None:
    device = tmp_path / "watchdog"
    device.write_text("")

    async def life() -> None:
        log = Log()
        found = senses(tmp_path, log, watchdog_device=str(device))
        assert device.read_bytes() == b"", "nothing is armed before the start"
        found.start(asyncio.get_running_loop())
        assert log[0][0] == "watchdog_armed"
        found.close()
        found.close()

    asyncio.run(life())
    assert device.read_bytes().endswith(b"V")


def test_a_watchdog_that_cannot_be_had_ends_the_start(tmp_path: Path) -> None:
    async def life() -> None:
        found = senses(tmp_path, Log(), watchdog_device=str(tmp_path / "none"))
        with pytest.raises(Unavailable, match="watchdog"):
            found.start(asyncio.get_running_loop())

    asyncio.run(life())


@pytest.mark.parametrize(("named", "is_warned"), [("/no/such", True), ("tmp102:1", False)])
def test_a_sensor_file_that_cannot_be_read_is_told(tmp_path: Path, named, is_warned) -> None:
    async def life() -> Log:
        log = Log()
        found = senses(tmp_path, log, temp_sensor=named, thermal_governor=False)
        found.start(asyncio.get_running_loop())
        assert found.health(0.0, 3).queue_length == 3
        found.close()
        return log

    assert bool(asyncio.run(life())) is is_warned
