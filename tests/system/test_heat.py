"""Cores over a window, from counters; what cannot be counted is null with its reason."""

import errno
import os
import struct
from pathlib import Path

import pytest

from din.domain.heat import CORE_MASK_MAX
from din.system import memory_traffic
from din.system.accelerator_facts import MIB, AcceleratorSample
from din.system.heat import HeatWindow
from din.system.memory_traffic import NoTraffic, Traffic, call_number


def stat(root: Path, *cores: str) -> None:
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"cpu{core}" for core in cores]
    (root / "proc/stat").write_text("\n".join(["cpu  9 9 9 9", *lines, "intr 5", ""]))


def test_each_core_is_busy_by_its_own_ticks(tmp_path: Path) -> None:
    stat(tmp_path, "0 10 0 0 100 0 0 0 0 0 0", "1 0 0 0 100 0 0 0 0 0 0", "2 5 0 0 5 0 0 0 0 0 0")
    window = HeatWindow(CORE_MASK_MAX, root=tmp_path)
    # Core 0 worked 7 of 10 ticks, guests counted once; core 1 waited for a disk; core 2 stood
    # still; core 3 came meanwhile.
    stat(tmp_path, "0 15 0 2 102 1 0 0 0 5 0", "1 0 0 0 105 5 0 0 0 0 0",
         "2 5 0 0 5 0 0 0 0 0 0", "3 1 0 0 1 0 0 0 0 0 0")  # fmt: skip
    cores = window.end(None)
    assert [(each.core, each.kind, each.percent) for each in cores] == [
        (0, "cpu", 70.0),
        (1, "cpu", 0.0),
        (2, "cpu", None),
        (3, "cpu", None),
    ]
    assert {each.bandwidth_percent for each in cores} == {None}
    assert "memory_mib_per_second" in window.unknown["bandwidth_percent"]


def test_only_the_cores_of_the_mask_are_shown(tmp_path: Path) -> None:
    stat(tmp_path, *(f"{core} 1 0 0 1 0 0 0 0 0 0" for core in range(4)))
    assert [each.core for each in HeatWindow(0b1010, root=tmp_path).end(None)] == [1, 3]


def test_a_machine_without_times_of_cores_says_so(tmp_path: Path) -> None:
    window = HeatWindow(1, root=tmp_path)
    assert window.end(None) == []
    assert "percent" in window.unknown


def test_this_machines_cores_are_all_there() -> None:
    window = HeatWindow(CORE_MASK_MAX)
    cores = window.end(None)
    assert {each.core for each in cores} >= set(os.sched_getaffinity(0))


def test_an_accelerator_is_shown_by_core_where_its_driver_tells_them_apart(tmp_path: Path) -> None:
    stat(tmp_path, "0 1 0 0 1 0 0 0 0 0 0")
    npu = AcceleratorSample(percent=28.7, core_percents=(74.0, 12.0, 0.0), source="sysfs")
    found = [
        each for each in HeatWindow(0b011, root=tmp_path).end(npu, "npu") if each.kind != "cpu"
    ]
    assert [(each.core, each.kind, each.percent) for each in found] == [
        (0, "npu", 74.0),
        (1, "npu", 12.0),
    ]
    gpu = AcceleratorSample(percent=None, bandwidth_percent=81.0, source="nvml")
    (whole,) = [each for each in HeatWindow(1, root=tmp_path).end(gpu) if each.kind == "gpu"]
    assert (whole.percent, whole.bandwidth_percent) == (None, 81.0)


def test_memory_traffic_of_the_kernels_monitor_is_shared_by_all_cores(
    tmp_path: Path, monkeypatch
) -> None:
    stat(tmp_path, "0 1 0 0 1 0 0 0 0 0 0", "1 1 0 0 1 0 0 0 0 0 0")
    monitors = []
    for socket in range(2):
        path = tmp_path / f"sys/fs/resctrl/mon_data/mon_L3_0{socket}/mbm_total_bytes"
        path.parent.mkdir(parents=True)
        path.write_text("1000\n")
        monitors.append(path)
    now = [5000]
    monkeypatch.setattr("din.system.heat.monotonic_ms", lambda: now[0])
    window = HeatWindow(CORE_MASK_MAX, 1000, tmp_path)
    now[0] += 100
    for path in monitors:
        path.write_text(f"{1000 + 40 * MIB}\n")
    assert [each.bandwidth_percent for each in window.end(None)] == [80.0, 80.0]
    assert window.unknown == {}


def counter_file(path: Path, count: int) -> None:
    path.write_bytes(struct.pack("Q", count))


def test_without_the_monitor_misses_of_the_last_cache_are_lines(tmp_path: Path) -> None:
    opened: list[int] = []

    def open_counter(core: int) -> int:
        path = tmp_path / f"counter{core}"
        if not path.exists():
            path.write_bytes(struct.pack("Q", 5) + struct.pack("Q", 105))
        opened.append(core)
        return os.open(path, os.O_RDONLY)

    traffic = Traffic((0, 1), tmp_path, open_counter)
    assert opened == [0, 1]
    assert traffic.nbytes() == 2 * 100 * 64
    assert traffic.words == "misses of the last cache"
    traffic.close()
    traffic.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "perf_event_paranoid"),
        (errno.EPERM, "perf_event_paranoid"),
        (errno.ENOENT, "has no counter"),
        (errno.ENOSYS, "has no counter"),
        (errno.EMFILE, "Too many open files"),
    ],
)
def test_counters_that_cannot_be_had_say_why_and_leave_nothing_open(
    tmp_path: Path, code: int, words: str
) -> None:
    path = tmp_path / "counter"
    counter_file(path, 0)
    opened: list[int] = []

    def open_counter(core: int) -> int:
        if core == 1:
            raise OSError(code, os.strerror(code))
        opened.append(os.open(path, os.O_RDONLY))
        return opened[-1]

    stat(tmp_path, "0 1 0 0 1 0 0 0 0 0 0", "1 1 0 0 1 0 0 0 0 0 0")
    window = HeatWindow(CORE_MASK_MAX, 1000, tmp_path, open_counter)
    assert words in window.unknown["bandwidth_percent"]
    assert [each.bandwidth_percent for each in window.end(None)] == [None, None]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_a_counter_of_this_machine_counts_or_says_why_it_does_not() -> None:
    reason = ""
    try:
        traffic = Traffic(sorted(os.sched_getaffinity(0)))
    except NoTraffic as fault:
        reason = str(fault)
    else:
        assert traffic.nbytes() >= 0
        traffic.close()
    assert not reason or "counter" in reason


def test_the_call_and_its_structure_are_those_of_each_machine() -> None:
    assert memory_traffic._ATTRIBUTES.size == 64
    assert [call_number(each, is_64_bit=True) for each in ("x86_64", "aarch64")] == [298, 241]
    assert [call_number(each, is_64_bit=False) for each in ("i686", "armv7l", "aarch64")] == [
        336, 364, 364,
    ]  # fmt: skip
    assert call_number("vax", is_64_bit=False) is None
