"""`din token` and `din node join | revoke`: what they ask, print and refuse, and what they hide."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from din.cli import daemon
from din.cli import join as module
from din.cli.token import show_new_token
from din.domain.enrolment import Membership, NewToken, RevokedView, TokenList, TokenView
from din.errors import Busy, Conflict, Denied, NotFound, Unavailable
from din.transport.membership import GATEWAYS_MAX, EnrolOrder, encode_enrol_answer
from din.wire.join_token import JoinToken
from tests.client.fake_gateway import FakeGateway, document, failing

from .conftest import Run

SECRET = "s3cret_-AAAAAAAAAAAAAA"
TOKEN = JoinToken("5f" * 32, "434d5aaa", SECRET).text
FAR = "https://10.0.0.5:8443"
TOKENS = "/api/v1/trust/tokens"
NEW = NewToken(
    id="434d5aaa",
    token=TOKEN,
    ttl_s=900,
    labels={"line": "4"},
    gateways=("https://127.0.0.1:8443", FAR),
)
MEMBER = Membership(
    cluster="plant", node_id="ab" * 8, gateways=(FAR,), signing_key="", begins_ms=1, ends_ms=2
)


# Tokens.


def test_a_token_is_ordered_as_the_flags_say_and_printed_alone(fake: FakeGateway, run: Run) -> None:
    fake.routes["POST", TOKENS] = document(NEW, 201)
    done = run("token", "create", "--ttl", "1h", "--label", "line=4", "--label", "site=a")
    assert (done.exit_code, done.stdout) == (0, f"{TOKEN}\n")
    assert json.loads(fake.seen[-1].body) == {"ttl_s": 3600, "labels": {"line": "4", "site": "a"}}
    # The next step names the gateway that other machines reach, and not the secret.
    assert f"din node join - --gateway {FAR}" in done.stderr
    assert SECRET not in done.stderr


def test_without_flags_a_token_lasts_a_quarter_of_an_hour(fake: FakeGateway, run: Run) -> None:
    fake.routes["POST", TOKENS] = document(NEW, 201)
    assert run("token", "create").exit_code == 0
    assert json.loads(fake.seen[-1].body) == {"ttl_s": 900, "labels": {}}
    shown = run("token", "create", "-o", "json")
    assert json.loads(shown.stdout)["schema"] == "din.token/1"


@pytest.mark.parametrize(
    "words",
    [
        ("--ttl", "soon"),
        ("--ttl", "-1s"),
        ("--ttl", "8d"),
        ("--ttl", "0s"),
        ("--label", "line"),
        ("--label", "=4"),
    ],
)
def test_what_cannot_be_meant_asks_no_gateway(
    words: tuple[str, ...], fake: FakeGateway, run: Run
) -> None:
    assert run("token", "create", *words).exit_code == 2
    assert fake.seen == []


def test_a_gateway_that_makes_no_token_is_told_with_its_hint(fake: FakeGateway, run: Run) -> None:
    fake.routes["POST", TOKENS] = failing(Busy("there are 1000 join tokens", hint="revoke some"))
    done = run("token", "create")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "1000 join tokens" in done.stderr
    assert "revoke some" in done.stderr
    assert len(fake.seen) == 1, "making one twice would leave one that nobody knows"


def test_tokens_are_listed_without_secrets(fake: FakeGateway, run: Run) -> None:
    items = (
        TokenView(id="434d5aaa", state="open", expires_in_s=600, labels={"line": "4"}),
        TokenView(id="0badcafe", state="used", expires_in_s=0, used_by="ab" * 8),
    )
    fake.routes["GET", TOKENS] = document(TokenList(items=items))
    done = run("token", "list")
    assert done.exit_code == 0
    # A span of life is told where there is one.
    assert done.stdout.splitlines()[2].split() == ["0badcafe", "used", "-", "-", "ab" * 8]
    for words in ("434d5aaa", "open", "line=4", "0badcafe", "used", "ab" * 8):
        assert words in done.stdout
    assert run("token", "list", "-o", "name").stdout == "434d5aaa\n0badcafe\n"
    fake.routes["GET", TOKENS] = document(TokenList(items=()))
    assert "din token create" in run("token", "list").stderr


def test_a_token_is_revoked_by_the_beginning_of_its_id(fake: FakeGateway, run: Run) -> None:
    view = TokenView(id="434d5aaa", state="open", expires_in_s=9)
    fake.routes["DELETE", f"{TOKENS}/43"] = document(view)
    done = run("token", "revoke", "43")
    assert (done.exit_code, "token 434d5aaa admits nobody" in done.stderr) == (0, True)
    fake.routes["DELETE", f"{TOKENS}/0badcafe"] = failing(NotFound("there is no join token"))
    assert run("token", "revoke", "0badcafe").exit_code == 6


# Revoking nodes.


def test_a_node_is_revoked_once_and_that_is_told(fake: FakeGateway, run: Run) -> None:
    view = RevokedView(node_id="ab" * 8, name="edge-1", is_new=True)
    fake.routes["POST", "/api/v1/nodes/edge-1/revoke"] = document(view)
    done = run("node", "revoke", "edge-1")
    assert (done.exit_code, done.stdout) == (0, "ab" * 8 + "\n")
    assert f"edge-1 ({view.node_id}) is out" in done.stderr
    fake.routes["POST", "/api/v1/nodes/edge-1/revoke"] = document(
        msgspec.structs.replace(view, is_new=False)
    )
    assert "and was before" in run("node", "revoke", "edge-1").stderr


def test_a_dry_run_of_revoking_asks_who_is_meant_and_changes_nothing(
    fake: FakeGateway, run: Run
) -> None:
    view = RevokedView(node_id="ab" * 8, name="edge-1", is_new=True)
    path = "/api/v1/nodes/edge-1/revoke"
    fake.routes["POST", path] = document(view)
    done = run("node", "revoke", "edge-1", "--dry-run")
    assert (done.exit_code, done.stdout) == (0, "ab" * 8 + "\n")
    assert f"would throw edge-1 ({view.node_id}) out" in done.stderr
    assert fake.seen[-1].path == f"{path}?dry_run=true"
    fake.routes["POST", path] = failing(Conflict("'edge-1' means 2 nodes", hint="give an id"))
    assert run("node", "revoke", "edge-1", "--dry-run").exit_code == 7


# Joining.


class Child:
    """Stands in for `python -m din.enrol join`."""

    def __init__(self) -> None:
        self.orders: list[EnrolOrder] = []
        self.outcome: Any = MEMBER

    def run(self, order: EnrolOrder) -> Membership:
        self.orders.append(order)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return msgspec.structs.replace(self.outcome, node_id=order.node_id)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    made = Child()
    monkeypatch.setattr(module, "run_enrol", made.run)
    monkeypatch.setattr(module, "_announced", lambda: ("https://10.9.9.9:8443", module.HERE))
    return made


def test_a_machine_joins_by_a_token_on_standard_input(
    child: Child, run: Run, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    words = ("node", "join", "-", "--name", "edge-1", "--state-dir", str(state))
    done = run(*words, "--gateway", "10.0.0.5", "--gateway", FAR, input=f"{TOKEN}\n")
    assert done.exit_code == 0, done.output
    (order,) = child.orders
    assert (order.token, order.name) == (TOKEN, "edge-1")
    assert order.folder == str(state / "trust")
    assert order.gateways == (FAR, FAR)
    assert done.stdout == f"{order.node_id}\n"
    assert order.node_id == json.loads((state / "identity.json").read_text())["node_id"]
    assert SECRET not in done.output
    assert "din node start --name edge-1 --host 0.0.0.0" in done.stderr
    again = run(*words, input=f"{TOKEN}\n")
    assert again.exit_code == 0
    assert child.orders[1].node_id == order.node_id, "the id stays"
    assert child.orders[1].gateways[0] == "https://10.9.9.9:8443"


def test_a_machine_whose_name_is_anothers_is_told_how_it_is_listed(
    child: Child, run: Run, tmp_path: Path
) -> None:
    child.outcome = replace(MEMBER, name="edge-1-95ab")
    words = ("node", "join", "-", "--name", "edge-1", "--state-dir", str(tmp_path / "s"))
    done = run(*words, "--gateway", FAR, input=TOKEN)
    assert "edge-1-95ab has joined cluster plant" in done.stderr
    assert "edge-1 is another machine's" in done.stderr
    assert "din node revoke edge-1" in done.stderr


def test_a_token_may_stand_in_a_file_and_is_read_once(
    child: Child, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(f"  {TOKEN}\n")
    words = ("node", "join", "--gateway", FAR, "--state-dir", str(tmp_path / "state"))
    assert run(*words, "--token-file", str(path)).exit_code == 0
    assert run(*words, TOKEN).exit_code == 0
    assert [each.token.strip() for each in child.orders] == [TOKEN, TOKEN]
    for wrong in ((), (TOKEN, "--token-file", str(path))):
        done = run(*words, *wrong)
        assert (done.exit_code, "no token was given, or two" in done.stderr) == (2, True)
    assert "cannot be read" in run(*words, "--token-file", str(tmp_path / "none")).stderr
    assert len(child.orders) == 2


def test_a_token_that_is_none_makes_no_directory_and_is_not_repeated(
    child: Child, run: Run, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    done = run("node", "join", "-", "--state-dir", str(state), input=f"{TOKEN}x\n")
    assert (done.exit_code, child.orders) == (2, [])
    assert SECRET not in done.output
    assert not state.exists()


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (Denied("join token 434d5aaa expired 9 s ago", hint="din token create"), 8),
        (Unavailable("no gateway has let this machine join in 60 s"), 4),
    ],
)
def test_why_it_did_not_join_is_told_with_its_code(
    error: Exception, exit_code: int, child: Child, run: Run, tmp_path: Path
) -> None:
    child.outcome = error
    words = ("node", "join", "-", "--gateway", FAR, "--state-dir", str(tmp_path / "s"))
    done = run(*words, input=TOKEN)
    assert (done.exit_code, done.stdout) == (exit_code, "")
    assert str(error) in done.stderr


def test_the_child_gets_the_token_by_its_standard_input_and_nowhere_else(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def start(words: list[str], **options: Any) -> Any:
        seen.append((words, options))

        class Done:
            stdout = encode_enrol_answer(MEMBER)

        return Done

    monkeypatch.setattr(module.subprocess, "run", start)
    words = ("node", "join", "-", "--gateway", FAR, "--state-dir", str(tmp_path / "s"))
    assert run(*words, input=TOKEN).exit_code == 0
    ((command, options),) = seen
    assert SECRET.encode() in options.pop("input")
    assert SECRET not in f"{command} {options}"


@pytest.mark.parametrize(
    ("lines", "urls"),
    [
        (b"", ()),
        (b'{"tls_urls": ["https://10.0.0.1:8443", "https://127.0.0.1:8443"]}\n', ("10.0.0.1",)),
        (b'nonsense\n{"tls_urls": 5}\n{"tls_urls": ["https://10.0.0.2:1"]}\n', ("10.0.0.2",)),
        (b'{"error": "multicast is not allowed here"}\n', ()),
        (b"".join(b'{"tls_urls": ["https://10.0.1.%d:1"]}\n' % n for n in range(40)), ("10.0.1.",)),
    ],
)
def test_gateways_that_announce_themselves_are_asked_before_this_machine(
    lines: bytes, urls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Done:
        stdout = lines

    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: Done)
    found = module._announced()
    assert found[-1] == module.HERE
    assert len(found) <= GATEWAYS_MAX
    assert len(set(found)) == len(found)
    assert all(any(url in each for url in urls) for each in found[:-1])
    assert len(found) > 1 or not urls


def test_a_browser_that_never_ends_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(words: list[str], **_: object) -> None:
        raise module.subprocess.TimeoutExpired(words, 1)

    monkeypatch.setattr(module.subprocess, "run", late)
    assert module._announced() == (module.HERE,)
    with pytest.raises(Unavailable, match="has let this machine join in 60 s"):
        module.run_enrol(EnrolOrder(folder="", gateways=()))


def test_a_first_token_is_shown_with_what_to_type_there(
    fake: FakeGateway, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del home
    fake.routes["POST", TOKENS] = document(NEW, 201)
    show_new_token(fake.url)
    told = capsys.readouterr()
    assert told.out == ""
    assert TOKEN in told.err
    assert "din node join -" in told.err
    fake.routes["POST", TOKENS] = failing(Denied("this needs an API key"))
    show_new_token(fake.url)
    assert "--key-file" in capsys.readouterr().err


def test_a_node_that_has_not_joined_is_told_which_on_this_machine_have(
    home: Path, run: Run
) -> None:
    words = ("node", "start", "--name", "edge-1", "--host", "0.0.0.0")
    alone = run(*words)
    assert (alone.exit_code, "join first" in alone.stderr) == (2, True)
    trust = home / ".local" / "state" / "din" / "nodes" / "edge-2" / "trust"
    trust.mkdir(parents=True)
    (trust / "cluster.json").write_text("{}")
    assert "--name one that has joined (edge-2)" in run(*words).stderr


def test_a_node_that_may_ask_by_tls_only_is_not_started_without_a_certificate(
    home: Path, run: Run
) -> None:
    del home
    done = run("node", "start", "--name", "edge-1", "--gateway", FAR, "--detach")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"no certificate, and {FAR} takes joined machines only" in done.stderr
    assert f"din node join - --name edge-1 --gateway {FAR}" in done.stderr


def test_a_machine_whose_node_runs_is_told_to_stop_it_before_it_joins(
    child: Child, run: Run, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    place = daemon.run_folder(str(state))
    place.mkdir(parents=True)
    other = subprocess.Popen(["sleep", "60"])
    try:
        ticks = daemon.start_ticks_of(other.pid)
        assert ticks is not None
        record = daemon.Record(
            pid=other.pid, start_ticks=ticks, boot_id=daemon.boot_id(), program="node", name="e-1"
        )
        daemon.write_record(place / "node.json", record)
        done = run("node", "join", "-", "--state-dir", str(state), input=f"{TOKEN}\n")
    finally:
        other.kill()
        other.wait()
    assert (done.exit_code, child.orders) == (7, [])
    assert f"node e-1 runs (process {other.pid})" in done.stderr
    assert f"din node stop --state-dir {state}, then join" in done.stderr
