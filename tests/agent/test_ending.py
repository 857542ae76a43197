"""Exit statuses in words, and whose fault they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from din.agent.ending import MemoryKills, death_of


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("exit_code", "kind", "words"),
    [
        (-11, "crash", "killed by signal 11 (SIGSEGV)"),
        (-4, "crash", "killed by signal 4 (SIGILL)"),
        (-6, "crash", "killed by signal 6 (SIGABRT)"),
        (-9, "killed", "killed by signal 9 (SIGKILL)"),
        (-15, "killed", "killed by signal 15 (SIGTERM)"),
        (75, "stuck", "a run did not end"),
        (70, "crash", "a fault in the worker itself"),
        (3, "left", "could not load"),
        (0, "left", "exit code 0"),
    ],
)
def test_each_end_has_a_kind_and_words(
    tmp_path: Path, exit_code: int, kind: str, words: str
) -> None:
    death = death_of(exit_code, 80, MemoryKills(tmp_path))
    assert death.kind == kind
    assert words in death.story()
    assert "at most 80 MiB resident" in death.story()
    assert death.is_own_fault == (kind in ("crash", "stuck", "memory"))


@pytest.mark.parametrize(
    ("name", "before", "after", "group"),
    [
        ("proc/vmstat", "oom_kill 4\n", "nr_free 1\noom_kill 5\n", "0::/\n"),
        (
            "sys/fs/cgroup/a/memory.events",
            "oom 0\noom_kill 0\n",
            "oom 1\noom_kill 1\n",
            "0::/a\n",
        ),
        (
            "sys/fs/cgroup/memory/a/memory.oom_control",
            "under_oom 0\noom_kill 0\n",
            "under_oom 0\noom_kill 1\n",
            "4:memory:/a\n",
        ),
    ],
)
def test_a_kill_for_want_of_memory_is_told_from_one_by_somebody(
    tmp_path: Path, name: str, before: str, after: str, group: str
) -> None:
    machine(tmp_path, {"proc/self/cgroup": group, name: before})
    kills = MemoryKills(tmp_path)
    assert death_of(-9, 80, kills).kind == "killed"
    machine(tmp_path, {name: after})
    death = death_of(-9, 80, kills)
    assert (death.kind, death.is_own_fault) == ("memory", True)
    assert "memory ran out" in death.reason
    assert death_of(-9, 80, kills).kind == "killed"


def test_a_kill_elsewhere_on_the_machine_is_not_ours_where_our_group_counts(
    tmp_path: Path,
) -> None:
    machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a\n",
            "proc/vmstat": "oom_kill 1\n",
            "sys/fs/cgroup/a/memory.events": "oom_kill 0\n",
        },
    )
    kills = MemoryKills(tmp_path)
    machine(tmp_path, {"proc/vmstat": "oom_kill 2\n"})
    assert death_of(-9, 1, kills).kind == "killed"
