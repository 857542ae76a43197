"""What TAB offers."""

import pytest
from click.shell_completion import ShellComplete

from din.cli.root import cli
from din.domain.enrolment import TokenList, TokenView
from din.domain.keys import KeyList, KeyView
from tests.client.fake_gateway import FakeGateway, document, node_list, node_view


def offered(words: list[str], start: str) -> list[tuple[str, str]]:
    found = ShellComplete(cli, {}, "din", "_DIN_COMPLETE").get_completions(words, start)
    return [(each.type, each.value) for each in found]


@pytest.fixture
def gateway(fake: FakeGateway, home: object, monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    monkeypatch.setenv("DIN_GATEWAY", fake.url)
    return fake


@pytest.mark.parametrize("words", [["infer"], ["plan"], ["model", "inspect"], ["model", "remove"]])
def test_models_are_completed_wherever_one_is_named(gateway: FakeGateway, words: list[str]) -> None:
    assert offered(words, "cen") == [("plain", "centerface")]
    assert offered(words, "x") == []


@pytest.mark.parametrize("command", ["inspect", "drain", "undrain", "label", "revoke"])
def test_nodes_are_completed_wherever_one_is_named(gateway: FakeGateway, command: str) -> None:
    gateway.routes["GET", "/api/v1/nodes"] = document(node_list(node_view()))
    assert offered(["node", command], "edge") == [("plain", "edge-gpu-01")]


def test_keys_and_tokens_that_still_count_are_completed(gateway: FakeGateway) -> None:
    keys = (
        KeyView(id=f"{number:08x}", name=name, tenant="default", scopes=("infer",), state=state,
                created_at="2026-01-01T00:00:00.000+00:00", created_by="local")
        for number, (name, state) in enumerate([("line-4", "active"), ("line-5", "revoked")])
    )  # fmt: skip
    gateway.routes["GET", "/api/v1/keys"] = document(KeyList(items=tuple(keys)))
    assert offered(["key", "revoke"], "li") == [("plain", "line-4")]
    tokens = (TokenView(id="434d5aaa", state="open", expires_in_s=9, labels={}),
              TokenView(id="434d5bbb", state="used", expires_in_s=9, labels={}))  # fmt: skip
    gateway.routes["GET", "/api/v1/trust/tokens"] = document(TokenList(items=tokens))
    assert offered(["token", "revoke"], "43") == [("plain", "434d5aaa")]


@pytest.mark.parametrize(
    "words",
    [
        ["infer", "m", "--input"],
        ["model", "register", "--config"],
        ["key", "create", "k", "--save"],
        ["node", "list", "--key-file"],
        ["node", "start", "--temp-sensor"],
        ["down", "--state-dir"],
    ],
)
def test_files_are_completed_by_the_shell(gateway: FakeGateway, words: list[str]) -> None:
    assert offered(words, "ph") == [("file", "ph")]


def test_without_a_gateway_nothing_is_offered_and_nothing_is_said(
    home: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIN_GATEWAY", "http://127.0.0.1:1")
    assert offered(["infer"], "c") == []
    assert capsys.readouterr() == ("", "")
