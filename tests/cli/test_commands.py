"""Facts that hold for every command, and for how each ends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from din.cli.frame import Command, LazyGroup
from din.cli.root import cli
from din.errors import (
    Busy,
    CannotPlace,
    Conflict,
    DeadlineExceeded,
    Denied,
    DinError,
    Internal,
    NotFound,
    UsageError,
    every_error,
)
from tests.cli.conftest import Run
from tests.client.fake_gateway import FakeGateway, Reply, failing

LISTING = {"list", "inspect", "slices", "show", "plan", "errors", "doctor", "register", "watch"}
NO_FORM = {"config explain", "trace watch"}


def every_command(group: LazyGroup = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        whole = f"{path} {name}".strip()
        if isinstance(found, LazyGroup):
            yield from every_command(found, whole)
        else:
            yield whole, found


COMMANDS = dict(every_command())


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_explains_itself_with_an_example_that_parses(path: str, run: Run) -> None:
    command = COMMANDS[path]
    assert isinstance(command, Command)
    assert command.examples
    told = run(*path.split(), "--help")
    assert told.exit_code == 0
    for example in command.examples:
        assert example in told.stdout
        assert f"din {path}" in example
    assert command.help
    assert path in COMMANDS


@pytest.mark.parametrize("path", COMMANDS)
def test_whatever_lists_has_all_five_forms(path: str) -> None:
    options = {option for each in COMMANDS[path].params for option in each.opts}
    if path.rsplit(maxsplit=1)[-1] in LISTING:
        assert "-o" in options
    assert {"-v", "-q"} <= options


def test_the_help_of_a_group_tells_what_the_command_tells() -> None:
    for path, command in COMMANDS.items():
        group: LazyGroup = cli
        for name in path.split()[:-1]:
            found = group.get_command(click.Context(group), name)
            assert isinstance(found, LazyGroup)
            group = found
        assert group.lazy[path.split()[-1]][1]
        assert command.name == path.split()[-1]


def test_help_stays_small() -> None:
    code = (
        "import sys; from din.cli.root import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "ours = [m for m in sys.modules if m.split('.')[0] == 'din']\n"
        "heavy = {'rich', 'starlette', 'numpy', 'onnx', 'onnxruntime', 'yaml', 'asyncio'}\n"
        "print(len(ours), *sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, *heavy = done.stderr.split()
    assert int(count) < 40
    assert heavy == []
    assert "din up" in done.stdout


def test_both_names_are_one_program() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"din": "din.cli:main", "din-cli": "din.cli:main"}


def test_the_version_is_told(run: Run) -> None:
    told = run("--version")
    assert (told.exit_code, told.stdout) == (0, "din, version 0.1.0\n")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (Internal("m"), 1),
        (UsageError("m"), 2),
        (CannotPlace("m"), 3),
        (Busy("m"), 4),
        (DeadlineExceeded("m"), 5),
        (NotFound("m"), 6),
        (Conflict("m"), 7),
        (Denied("m"), 8),
    ],
    ids=str,
)
def test_each_error_has_its_exit_code_and_two_lines(
    fake: FakeGateway, run: Run, error: DinError, exit_code: int
) -> None:
    error.hint = "do this"
    fake.routes["GET", "/api/v1/nodes"] = failing(error)
    told = run("node", "list")
    assert told.exit_code == exit_code
    assert told.stdout == ""
    assert told.stderr == "error: m\nhint: do this\n"
    assert run("node", "list", "-v").stderr == f"error: m\nhint: do this\ncode: {error.code}\n"
    assert run("-v", "node", "list").stderr.endswith(f"code: {error.code}\n")


def test_ctrl_c_ends_with_130(fake: FakeGateway, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("din.cli.display.time.sleep", interrupt)
    told = run("node", "watch")
    assert told.exit_code == 130
    assert "edge-gpu-01" in told.stdout
    assert told.stderr.endswith("interrupted\n")


def test_a_fault_of_ours_is_said_as_such_and_told_whole_with_v(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a surprise")

    monkeypatch.setattr("din.cli.node._show_nodes", fail)
    told = run("node", "list")
    assert told.exit_code == 1
    assert told.stderr.startswith("error: din failed inside: ValueError: a surprise\nhint: ")
    assert "Traceback" not in told.stderr
    assert "Traceback" in run("node", "list", "-v").stderr


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["nod"], "no such command: 'din nod'", "did you mean 'din node'?"),
        (["node", "lst"], "no such command: 'din node lst'", "did you mean 'din node list'?"),
        (["node", "list", "--watc"], "No such option '--watc'", "see 'din node list --help'"),
        (["node", "list", "-o", "xml"], "'xml' is not one of", "see 'din node list --help'"),
        (
            ["--gateway", "x", "node", "list"],
            "No such option '--gateway'",
            "options stand behind the whole command; see 'din --help'",
        ),
        (["node", "inspect"], "Missing argument 'NODE'", "see 'din node inspect --help'"),
    ],
)
def test_misuse_is_two_lines_and_exit_code_2(
    run: Run, words: list[str], message: str, hint: str
) -> None:
    told = run(*words)
    assert told.exit_code == 2
    assert told.stderr.startswith("error: ")
    assert message in told.stderr
    assert told.stderr.endswith(f"hint: {hint}\n")


@pytest.mark.parametrize("words", [[], ["node"], ["model"]])
def test_a_group_alone_shows_its_commands_and_not_an_error(run: Run, words: list[str]) -> None:
    told = run(*words)
    assert told.exit_code == 2
    assert told.stdout == ""
    assert told.stderr == run(*words, "--help").stdout


def test_no_gateway_is_exit_code_4(home: object) -> None:
    from click.testing import CliRunner

    told = CliRunner().invoke(cli, ["node", "list", "--gateway", "http://127.0.0.1:1"])
    assert told.exit_code == 4
    assert "error: no gateway answered at http://127.0.0.1:1 (Connection refused)" in told.stderr
    assert "hint: start one with `din up`" in told.stderr


def test_text_from_elsewhere_cannot_steer_the_terminal(fake: FakeGateway, run: Run) -> None:
    fake.routes["GET", "/api/v1/nodes"] = failing(NotFound("\x1b[2Jgone\x07"))
    assert "\x1b" not in run("node", "list").stderr


def test_a_reader_that_goes_away_is_no_error(fake: FakeGateway) -> None:
    environment = {**os.environ, "DIN_GATEWAY": fake.url}
    line = f"{sys.executable} -c 'from din.cli import main; main()' node list | true"
    done = subprocess.run(
        ["bash", "-c", line], env=environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr


def test_errors_lists_the_whole_tree(run: Run) -> None:
    told = run("errors", "-o", "json")
    items = json.loads(told.stdout)["items"]
    assert {each["code"] for each in items} == {each.code for each in every_error()}
    one = run("errors", "200")
    assert "CannotPlace" in one.stdout
    assert run("errors", "DIN-999").exit_code == 6


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_serves_both_names(run: Run, shell: str) -> None:
    told = run("completion", shell)
    assert told.exit_code == 0
    assert "_DIN_COMPLETE" in told.stdout
    assert "_DIN_CLI_COMPLETE" in told.stdout


def test_an_answer_of_no_gateway_is_told(fake: FakeGateway, run: Run) -> None:
    fake.routes["GET", "/api/v1/nodes"] = lambda _: Reply(200, b"<html>")
    told = run("node", "list")
    assert told.exit_code == 1
    assert "not what this version of DIN knows" in told.stderr
