import os
from pathlib import Path

import pytest

from din import config
from din.cli import sources
from din.cli.knobs import (
    Origin,
    build,
    knobs,
)
from din.cli.sources import collect, load_gateway, load_node
from din.config import (
    GatewayConfig,
    NodeConfig,
    encode_config,
    received_config,
)
from din.config_forms import default_node_name
from din.errors import UsageError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sources, "SYSTEM_FILE", tmp_path / "etc" / "config.yaml")
    (tmp_path / "etc").mkdir()
    (tmp_path / ".config" / "din").mkdir(parents=True)
    return tmp_path


def write(home: Path, user: str = "", system: str = "") -> dict[str, str]:
    (home / ".config" / "din" / "config.yaml").write_text(user)
    (home / "etc" / "config.yaml").write_text(system)
    return {"HOME": str(home)}


def test_flags_win_over_environment_over_user_over_system_over_default(home: Path) -> None:
    environment = write(home, user="gateway: {port: 3}", system="port: 2\ncluster: etc")
    assert load_gateway({}, {"HOME": "/nowhere"}).port == 2
    assert load_gateway({}, environment).port == 3
    environment["DIN_GATEWAY_PORT"] = "4"
    assert load_gateway({}, environment).port == 4
    assert load_gateway({"port": 5}, environment).port == 5
    found = collect("gateway", {"port": 5, "cluster": None}, environment).values
    assert found["port"] == Origin(5, "flag --port")
    assert found["cluster"] == Origin("etc", str(sources.SYSTEM_FILE))
    assert found["host"] == Origin("127.0.0.1", "default")


def test_keys_at_the_top_are_for_both_but_ports_are_the_gateways(home: Path) -> None:
    environment = write(home, "cluster: line-4\nport: 9000\ngpu_monitoring: nvidia_smi")
    assert load_gateway({}, environment).port == 9000
    node = load_node({"name": "a"}, environment)
    assert (node.cluster, node.port, node.gpu_monitoring) == ("line-4", 8080, "nvidia_smi")


def test_a_key_with_nothing_after_it_is_as_if_left_out(home: Path) -> None:
    environment = write(
        home, user="gateway: {port: null}\nlabels:\nname:\nmemory_mib:\nnode:", system="port: 2"
    )
    assert load_gateway({}, environment).port == 2
    assert load_node({}, environment) == load_node({}, write(home))


def test_environment_words_are_parsed_for_their_key(home: Path) -> None:
    environment = {
        "HOME": str(home),
        "DIN_GATEWAY": "http://a:1,http://b:2",
        "DIN_LABELS": "line=4,room=b",
        "DIN_DISABLE_TEMP_MONITORING": "true",
        "DIN_NODE_PORT": "0",
        "DIN_PORT": "8001",
    }
    node = load_node({}, environment)
    assert node.gateway == ("http://a:1", "http://b:2")
    assert node.labels == {"line": "4", "room": "b"}
    assert node.disable_temp_monitoring
    assert node.port == 0
    assert load_gateway({}, environment).port == 8001


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("clutser: a", "clutser", "cluster"),
        ("gateway: {prot: 1}", "gateway.prot", "port"),
        ("node: {temp_sensr: /x}", "node.temp_sensr", "temp_sensor"),
    ],
)
def test_an_unknown_key_names_file_key_and_what_was_meant(
    home: Path, text: str, key: str, hint: str
) -> None:
    environment = write(home, text)
    section = "node" if key.startswith("node") else "gateway"
    with pytest.raises(UsageError) as caught:
        collect(section, {}, environment)
    assert repr(key) in caught.value.message
    assert str(home / ".config" / "din" / "config.yaml") in caught.value.message
    assert caught.value.hint == f"did you mean {hint!r}?"


@pytest.mark.parametrize(
    ("flags", "message", "allowed"),
    [
        ({"port": 65536}, "port is 65536 (from flag --port)", "0 to 65535"),
        ({"discovery_mode": "radio"}, "'radio'", "auto | multicast | unicast"),
        ({"cluster": "Line_4"}, "'Line_4'", "RFC 1123"),
        ({"node_heartbeat_interval_ms": 10}, "10", "50 to 3600000"),
        ({"insecure_network": "perhaps"}, "'perhaps'", "true | false"),
    ],
)
def test_a_bad_value_names_key_value_source_and_what_is_allowed(
    home: Path, flags: dict[str, object], message: str, allowed: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_gateway(flags, {"HOME": str(home)})
    assert message in caught.value.message
    assert allowed in caught.value.hint


@pytest.mark.parametrize("text", ["a: [", "- 1", "\x00", "just words"])
def test_a_file_that_is_no_settings_is_refused_with_its_name(home: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.yaml"):
        load_gateway({}, write(home, text))


def test_a_file_that_may_not_be_read_is_said(home: Path) -> None:
    (home / ".config" / "din" / "config.yaml").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        load_gateway({}, {"HOME": str(home)})


def test_a_strange_variable_is_a_warning_with_a_suggestion(home: Path) -> None:
    environment = {"HOME": str(home), "DIN_CLUSTR": "x", "DIN_QQQ": "1"}
    told = collect("gateway", {}, environment).warnings
    assert told == (
        "environment variable DIN_CLUSTR means nothing to DIN; did you mean DIN_CLUSTER?",
        "environment variable DIN_QQQ means nothing to DIN",
    )


def test_state_lies_where_xdg_says_and_nodes_below(home: Path) -> None:
    environment = {"HOME": str(home)}
    base = home / ".local" / "state" / "din"
    assert load_gateway({}, environment).state_dir == str(base)
    assert load_node({"name": "a"}, environment).state_dir == str(base / "nodes" / "a")
    environment["XDG_STATE_HOME"] = "/x"
    assert load_gateway({}, environment).state_dir == "/x/din"
    environment["DIN_STATE_DIR"] = "rel"
    assert load_gateway({}, environment).state_dir == str(Path.cwd() / "rel")
    assert load_node({"state_dir": "/own"}, environment).state_dir == "/own"


@pytest.mark.parametrize(
    ("host", "name"),
    [("Edge_07.factory.lan", "edge-07"), ("---", "node"), ("", "node"), ("x" * 80, "x" * 63)],
)
def test_a_node_is_named_after_its_host(host: str, name: str) -> None:
    assert default_node_name(host) == name


def test_one_interface_or_several_are_a_list(tmp_path: Path) -> None:
    """T01: in a file, one word or a list; in the environment, between commas."""
    home = {"HOME": str(tmp_path)}
    path = tmp_path / ".config/din/config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("interfaces_allowed: eth*\nnode:\n  interfaces_denied: [eth1, wwan*]\n")
    node = build(NodeConfig, collect("node", {}, home).values)
    assert node.interfaces_allowed == ("eth*",)
    assert node.interfaces_denied == ("eth1", "wwan*")
    gateway = build(GatewayConfig, collect("gateway", {}, home).values)
    assert (gateway.interfaces_allowed, gateway.interfaces_denied) == (("eth*",), ())
    told = collect("node", {}, {**home, "DIN_INTERFACES_ALLOWED": "wlan0,eth*"})
    assert build(NodeConfig, told.values).interfaces_allowed == ("wlan0", "eth*")


def test_every_knob_has_a_meaning_what_it_allows_and_a_default_that_fits() -> None:
    for knob in knobs():
        assert knob.meaning
        assert knob.allowed
        ends = {"ms": "_ms", "MiB": "_mib", "MB": "_mb", "bytes": "bytes_max", "days": "_days"}
        ends["MiB/s"] = "_mib_per_second"
        assert not knob.unit or knob.key.endswith(ends[knob.unit])
    build(GatewayConfig, collect("gateway", {}, {"HOME": "/nowhere"}).values)
    build(NodeConfig, collect("node", {}, {"HOME": "/nowhere"}).values)


def test_the_default_jitter_is_a_sixth_and_a_half_of_the_interval() -> None:
    """The seeds' own rule, jitter = interval x 0.15, gives 450 and not their 500."""
    fresh = GatewayConfig()
    assert fresh.node_heartbeat_jitter_ms == fresh.node_heartbeat_interval_ms * 0.15 == 450


def test_settings_survive_the_hand_over_to_a_program() -> None:
    node = NodeConfig(name="a", labels={"x": "y"}, gateway=("http://a",), cpu_cores=0.5)
    handed = {config.HANDOVER_VARIABLE: encode_config(node)}
    assert received_config(NodeConfig, handed) == node
    with pytest.raises(UsageError, match="no settings"):
        received_config(GatewayConfig, {})
    with pytest.raises(UsageError, match="broken"):
        received_config(GatewayConfig, handed)


def test_importing_the_settings_needs_neither_yaml_nor_click() -> None:
    import subprocess
    import sys

    code = (
        "import sys, din.config as c; c.received_config(c.NodeConfig, {c.HANDOVER_VARIABLE: '{}'});"
        "print(*sorted({'yaml', 'click', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == ""
