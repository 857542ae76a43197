"""`din key` and `din audit`: what they ask, print, save and refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from din.cli import root
from din.cli.quantities import parse_bytes, parse_duration_s
from din.domain.audit import AuditCheck, AuditEntry, AuditFact, AuditList
from din.domain.keys import KeyCreated, KeyList, KeyView
from din.errors import Denied, UsageError
from tests.client.fake_gateway import FakeGateway, document, failing

from .conftest import Run

KEY = "din_0badcafe." + "A" * 43
VIEW = KeyView(
    id="0badcafe",
    name="line-4",
    tenant="line-4",
    scopes=("infer",),
    state="active",
    created_at="2026-01-01T00:00:00.000+00:00",
    created_by="local",
    requests_per_s=5.0,
    burst=10,
)
ENTRY = AuditEntry(
    seq=7,
    previous="0" * 64,
    entry=AuditFact(
        at="2026-01-01T08:00:00.000+00:00",
        kind="key",
        who="0badcafe",
        address="10.0.0.9",
        what="model.remove",
        target="faces",
        before={"version": "3"},
    ),
)


def sent(fake: FakeGateway) -> dict[str, object]:
    return json.loads(fake.seen[-1].body)


def test_a_key_is_ordered_as_the_flags_say_and_printed_alone(fake: FakeGateway, run: Run) -> None:
    fake.routes["POST", "/api/v1/keys"] = document(KeyCreated(key=KEY, view=VIEW), 201)
    done = run(
        "key", "create", "line-4", "--scope", "infer", "--scope", "metrics:read",
        "--tenant", "line-4", "--expires", "90d", "--rate", "5", "--burst", "10",
        "--body-max", "8MiB",
    )  # fmt: skip
    assert (done.exit_code, done.stdout) == (0, f"{KEY}\n")
    assert "0badcafe" in done.stderr
    assert KEY not in done.stderr
    assert sent(fake) == {
        "name": "line-4",
        "scopes": ["infer", "metrics:read"],
        "tenant": "line-4",
        "life_s": 90 * 86_400,
        "requests_per_s": 5.0,
        "burst": 10,
        "body_bytes_max": 8 * 1024**2,
    }


def test_a_key_can_go_into_a_file_and_nowhere_else(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    fake.routes["POST", "/api/v1/keys"] = document(KeyCreated(key=KEY, view=VIEW), 201)
    path = tmp_path / "line-4.key"
    words = ("key", "create", "line-4", "--scope", "infer", "--save", str(path), "-o", "json")
    done = run(*words)
    assert done.exit_code == 0
    assert KEY not in done.output
    assert json.loads(done.stdout)["id"] == "0badcafe"
    assert (path.read_text(), path.stat().st_mode & 0o777) == (f"{KEY}\n", 0o600)
    again = run(*words)
    assert (again.exit_code, "exists already" in again.stderr) == (7, True)
    assert path.read_text() == f"{KEY}\n"


def test_a_key_that_was_not_made_leaves_no_file(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    fake.routes["POST", "/api/v1/keys"] = failing(Denied("it needs scope admin"))
    path = tmp_path / "line-4.key"
    done = run("key", "create", "line-4", "--scope", "infer", "--save", str(path))
    assert (done.exit_code, path.exists()) == (8, False)


def test_keys_are_listed_and_revoked(fake: FakeGateway, run: Run) -> None:
    fake.routes["GET", "/api/v1/keys"] = document(KeyList(items=(VIEW,)))
    fake.routes["DELETE", "/api/v1/keys/line-4"] = document(VIEW)
    listed = run("key", "list", "-o", "wide")
    assert "5/s burst 10" in listed.stdout
    assert run("key", "list", "-o", "name").stdout == "0badcafe\n"
    assert "nothing was changed" in run("key", "revoke", "0bad", "--dry-run").stderr
    assert [each.method for each in fake.seen] == ["GET", "GET", "GET"]
    assert run("key", "revoke", "line-4").stdout == "0badcafe\n"
    assert run("key", "revoke", "nobody", "--dry-run").exit_code == 6


def test_every_command_that_asks_a_gateway_takes_a_key_file(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "k"
    path.write_text(KEY)
    path.chmod(0o600)
    for words in (("node", "list"), ("model", "list"), ("trace", "list")):
        assert run(*words, "--key-file", str(path)).exit_code == 0
        assert fake.seen[-1].headers["authorization"] == f"Bearer {KEY}"
    assert run("node", "list").exit_code == 0
    assert "authorization" not in fake.seen[-1].headers


def test_the_key_file_may_stand_in_the_settings_and_its_readers_are_warned_of(
    fake: FakeGateway, run: Run, home: Path
) -> None:
    path = home / "k"
    path.write_text(KEY)
    path.chmod(0o644)
    folder = home / ".config" / "din"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"api_key_file: {path}\n")
    done = run("node", "list")
    assert done.exit_code == 0
    assert f"chmod 600 {path}" in done.stderr
    assert fake.seen[-1].headers["authorization"] == f"Bearer {KEY}"
    other = "din_ffffffff." + "B" * 43
    run("node", "list", env={"DIN_GATEWAY": fake.url, "DIN_API_KEY": other})
    assert fake.seen[-1].headers["authorization"] == f"Bearer {other}"


def test_the_audit_log_is_asked_by_time_who_and_what(fake: FakeGateway, run: Run) -> None:
    fake.routes["GET", "/api/v1/audit"] = document(AuditList(items=(ENTRY,)))
    done = run(
        "audit", "list", "--since", "2026-01-01T07:00", "--who", "0badcafe", "--what", "model",
        "--limit", "5", "-o", "wide",
    )  # fmt: skip
    assert "key 0badcafe" in done.stdout
    assert '{"version":"3"}' in done.stdout
    path = fake.seen[-1].path
    for part in (
        "since=2026-01-01T07%3A00%3A00%2B00%3A00",
        "who=0badcafe",
        "what=model",
        "limit=5",
    ):
        assert part in path
    assert "until" not in path
    fact = msgspec.structs.replace(ENTRY.entry, target="ab" * 8, after={"name": "edge-1"})
    entry = msgspec.structs.replace(ENTRY, entry=fact)
    fake.routes["GET", "/api/v1/audit"] = document(AuditList(items=(entry,)))
    assert f"{'ab' * 8} (edge-1)" in run("audit", "list").stdout
    assert run("audit", "list", "--since", "yesterday").exit_code == 2
    assert run("audit", "list", "--since", "90x").exit_code == 2


@pytest.mark.parametrize(("problems", "code"), [((), 0), (("line 3 was changed",), 7)])
def test_a_log_that_is_not_whole_ends_with_an_error(
    fake: FakeGateway, run: Run, problems: tuple[str, ...], code: int
) -> None:
    check = AuditCheck(
        is_whole=not problems, first_seq=1, last_seq=9, head_sha256="ab" * 32, problems=problems
    )
    fake.routes["GET", "/api/v1/audit/check"] = document(check)
    done = run("audit", "verify")
    assert done.exit_code == code
    assert "ab" * 32 in done.stdout
    assert all(each in done.stderr for each in problems)


def test_spans_and_sizes_read_as_people_write_them() -> None:
    assert [parse_duration_s("--x", each) for each in ("30s", "90m", "2h", "7d", "1w")] == [
        30, 5_400, 7_200, 604_800, 604_800,
    ]  # fmt: skip
    assert [parse_bytes("--x", each) for each in ("1", "2KiB", "2kb", "8MiB", "1g")] == [
        1, 2_048, 2_000, 8 * 1024**2, 1024**3,
    ]  # fmt: skip
    for text in ("", "d", "-1d", "1.5h", "5y", "1 d"):
        with pytest.raises(UsageError, match="--x"):
            parse_duration_s("--x", text)
    with pytest.raises(UsageError, match="--y"):
        parse_bytes("--y", "8 MiB")


def test_no_command_takes_a_key_as_an_argument() -> None:
    from click import Context, Group

    def options(command, context):
        if isinstance(command, Group):
            for name in command.list_commands(context):
                yield from options(command.get_command(context, name), context)
        else:
            yield from ((command.name, option) for each in command.params for option in each.opts)

    found = {option for _, option in options(root.cli, Context(root.cli))}
    assert "--key-file" in found
    assert not found & {"--key", "--api-key", "--secret", "--password"}
    assert os.environ.get("DIN_API_KEY") is None
