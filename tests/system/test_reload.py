"""Reading settings again: one time after the other, and never worse than before."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from din.cli.daemon import program_environment
from din.config import GIVEN_VARIABLE, NodeConfig
from din.errors import Unavailable, UsageError
from din.system.notify import ServiceManager
from din.system.reload import Reloader, fresh_config


def environment(folder: Path, settings: str = "", **more: str) -> dict[str, str]:
    file = folder / "din" / "config.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(settings)
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    return {**plain, GIVEN_VARIABLE: "{}", **more}


def test_what_was_given_by_flags_stands_above_a_file_that_is_read_again(tmp_path: Path) -> None:
    base = environment(tmp_path, "node: {port: 9000}\n")
    config = NodeConfig(name="edge-1", port=9001, labels={"line": "4"}, state_dir="/s")
    given = program_environment(config, base)
    again = asyncio.run(fresh_config(NodeConfig, given))
    assert again == config
    environment(tmp_path, "node: {port: 9002, slice_quota_mib: 5, labels: {line: '9'}}\n")
    again = asyncio.run(fresh_config(NodeConfig, given))
    assert (again.port, again.labels, again.slice_quota_mib) == (9001, {"line": "4"}, 5)


def test_settings_that_came_whole_cannot_be_read_again() -> None:
    with pytest.raises(UsageError, match="from no file"):
        asyncio.run(fresh_config(NodeConfig, {}))


@pytest.mark.parametrize("settings", ["node: [", "node: {prot: 1}", "node: {port: 70000}"])
def test_a_broken_file_is_told_in_the_words_of_every_command(tmp_path: Path, settings: str) -> None:
    with pytest.raises(UsageError) as told:
        asyncio.run(fresh_config(NodeConfig, environment(tmp_path, settings)))
    assert told.value.message
    assert told.value.hint


def test_variables_that_are_broken_change_nothing(tmp_path: Path) -> None:
    broken = environment(tmp_path, **{GIVEN_VARIABLE: "{"})
    with pytest.raises(UsageError, match="is broken"):
        asyncio.run(fresh_config(NodeConfig, broken))


def test_what_cannot_be_taken_up_is_told_and_the_next_reload_is_heard(tmp_path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    taken: list[NodeConfig] = []

    def apply(config: NodeConfig) -> None:
        taken.append(config)
        if len(taken) == 1:
            raise Unavailable("the certificate is broken")

    async def reload_twice() -> None:
        reloader = Reloader(
            NodeConfig(name="edge-1", state_dir=str(tmp_path)),
            frozenset({"labels"}),
            apply,
            manager=ServiceManager({}),
            standing=lambda: "",
            report=lambda event, **facts: told.append((event, facts)),
            environment=environment(
                tmp_path,
                f"node: {{name: edge-1, state_dir: '{tmp_path}', labels: {{a: b}}, port: 1}}\n",
            ),
        )
        running = asyncio.ensure_future(reloader.run())
        for count in (1, 3):
            reloader.ask()
            reloader.ask()
            async with asyncio.timeout(60):
                while len(told) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        running.cancel()

    asyncio.run(reload_twice())
    assert [each[0] for each in told] == ["reload_failed", "reloaded", "reload_warning"]
    assert told[0][1]["error"] == "the certificate is broken"
    assert told[2][1]["unchanged"] == "port"
    assert [each.labels for each in taken] == [{"a": "b"}] * 2
    assert taken[0].port == NodeConfig().port
