"""What is free, on machines made of files."""

from pathlib import Path

import pytest

from din.system.headroom import Headroom, read_headroom

MIB = 1024 * 1024
MEMINFO = "MemTotal: 8000000 kB\nMemAvailable: 2097152 kB\nSwapFree: 9000000 kB\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_limits_it_is_what_the_machine_calls_available_and_swap_is_not_counted(
    tmp_path: Path,
) -> None:
    machine(tmp_path, {"proc/meminfo": MEMINFO})
    assert read_headroom(tmp_path) == Headroom(2048, "this machine")


def test_the_tightest_group_above_us_counts_in_either_version(tmp_path: Path) -> None:
    for version, files in {
        "two": {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/inner/memory.max": f"{1024 * MIB}\n",
            "sys/fs/cgroup/outer/inner/memory.current": f"{100 * MIB}\n",
            "sys/fs/cgroup/outer/memory.max": f"{512 * MIB}\n",
            "sys/fs/cgroup/outer/memory.current": f"{400 * MIB}\n",
        },
        "one": {
            "proc/self/cgroup": "4:memory:/outer/inner\n",
            "sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes": f"{1024 * MIB}\n",
            "sys/fs/cgroup/memory/outer/inner/memory.usage_in_bytes": f"{100 * MIB}\n",
            "sys/fs/cgroup/memory/outer/memory.limit_in_bytes": f"{512 * MIB}\n",
            "sys/fs/cgroup/memory/outer/memory.usage_in_bytes": f"{400 * MIB}\n",
        },
    }.items():
        root = machine(tmp_path / version, {"proc/meminfo": MEMINFO, **files})
        found = read_headroom(root)
        assert found is not None
        assert found.free_mib == 112
        assert "the limit of 512 MiB in" in found.bound


def test_files_that_nobody_used_lately_count_as_free_in_a_group(tmp_path: Path) -> None:
    machine(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": f"{512 * MIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{512 * MIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"active_file 5\ninactive_file {300 * MIB}\n",
        },
    )
    found = read_headroom(tmp_path)
    assert found is not None
    assert found.free_mib == 300


def test_where_a_group_is_slowed_down_before_its_end_counts_too(tmp_path: Path) -> None:
    machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": f"{512 * MIB}\n",
            "sys/fs/cgroup/a/memory.high": f"{256 * MIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{200 * MIB}\n",
        },
    )
    found = read_headroom(tmp_path)
    assert found is not None
    assert found.free_mib == 56


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n", "nonsense\n", ""])
def test_no_limit_is_no_bound(tmp_path: Path, text: str) -> None:
    machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": text,
            "sys/fs/cgroup/a/memory.current": "4096\n",
        },
    )
    assert read_headroom(tmp_path) is None


def test_over_its_limit_nothing_is_free(tmp_path: Path) -> None:
    machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": "4096\n",
            "sys/fs/cgroup/a/memory.current": "8192\n",
        },
    )
    found = read_headroom(tmp_path)
    assert found is not None
    assert found.free_mib == 0
