"""Secrets stay where they belong: after right and wrong keys and tokens, every log, trace, answer,
file, command line and environment of a real network is searched for each of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psutil
import pytest

from din.client import Client
from din.transport.membership import EnrolOrder, enrol_command
from tests.road.processes import Network, send, wait_for
from tests.road.small_models import chain

pytestmark = pytest.mark.system


class Secret(NamedTuple):
    """What must be nowhere but in `homes`."""

    name: str
    text: bytes
    homes: tuple[Path, ...] = ()


def other(text: str) -> str:
    """The same but for its end, as somebody guesses."""
    return text[:-6] + ("AAAAAA" if not text.endswith("AAAAAA") else "BBBBBB")


def make_key(network: Network, name: str, *words: str, **env: str) -> Path:
    path = network.folder / "home" / f"{name}.key"
    done = network.din("key", "create", name, *words, "--save", str(path), env=env)
    assert done.returncode == 0, done.stderr
    return path


def make_token(network: Network, key: str) -> dict[str, Any]:
    status, raw = send(
        network.url, "POST", "/api/v1/trust/tokens", b"{}",
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )  # fmt: skip
    assert status < 300, raw
    return json.loads(raw)


def join(network: Network, name: str, token: str, gateways: tuple[str, ...]) -> tuple[int, bytes]:
    """What `din node join` starts, with its words on standard input."""
    folder = network.folder / name / "trust"
    node_id = name.encode().hex()[:16].rjust(16, "0")
    order = EnrolOrder(
        folder=str(folder), gateways=gateways, token=token, node_id=node_id, name=name
    )
    with subprocess.Popen(
        enrol_command("join"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        shown = places_of([psutil.Process(child.pid)])
        out, err = child.communicate(msgspec.json.encode(order), timeout=60)
    return child.returncode, out + err + b"".join(shown.values())


def places_of(processes: list[psutil.Process]) -> dict[str, bytes]:
    """Command lines and environments, by path."""
    found: dict[str, bytes] = {}
    for process in processes:
        for name in ("cmdline", "environ"):
            path = Path(f"/proc/{process.pid}/{name}")
            try:
                found[str(path)] = path.read_bytes()
            except (PermissionError, ProcessLookupError, FileNotFoundError):
                continue  # hidden from this user, or gone
    return found


def family(network: Network) -> list[psutil.Process]:
    assert network.gateway is not None
    mains = [psutil.Process(each.pid) for each in (network.gateway, *network.nodes.values())]
    return [process for main in mains for process in (main, *main.children(recursive=True))]


def ask_rightly_and_wrongly(network: Network, keys: dict[str, str]) -> Iterator[bytes]:
    """Every answer and everything that the command line says."""
    x = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1] * 8}
    body = json.dumps({"inputs": [x]})
    shown = [*keys.values(), *(other(key) for key in keys.values()), keys["infer"][:-1]]
    for key in shown:
        for headers in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}):
            for method, path in (
                ("POST", "/v2/models/small/infer"),
                ("GET", "/api/v1/traces"),
                ("GET", "/api/v1/keys"),
                ("GET", "/api/v1/nodes"),
                ("GET", "/metrics"),
            ):
                sent = body.encode() if method == "POST" else b""
                yield send(network.url, method, path, sent, headers)[1]
    for key in keys.values():
        yield send(network.url, "GET", "/v2", b"", {"Authorization": f"Basic {key}"})[1]
        wrong = network.folder / "home" / "wrong.key"
        wrong.write_text(other(key))
        wrong.chmod(0o600)
        for words in (("model", "list", "-v"), ("doctor",), ("audit", "list", "-o", "json")):
            done = network.din(*words, "--key-file", str(wrong))
            assert done.returncode, (words, done.stdout)
            yield (done.stdout + done.stderr).encode()
        wrong.unlink()


def look_with(network: Network, key_file: Path) -> Iterator[bytes]:
    for words in (
        ("audit", "list", "-o", "json"),
        ("trace", "list", "-o", "json"),
        ("trace", "show", "last"),
        ("key", "list", "-o", "json"),
        ("node", "list", "-o", "json"),
        ("doctor", "-o", "json"),
    ):
        done = network.din(*words, "--key-file", str(key_file))
        assert done.stdout, (words, done.stderr)
        yield (done.stdout + done.stderr).encode()


def private_keys(folder: Path) -> Iterator[Secret]:
    """The bodies of all private keys of a network, whatever their form."""
    for path in folder.rglob("*.key"):
        if path.parent.name == "trust":
            raw = path.read_bytes()
            lines = [each for each in raw.splitlines() if b"-----" not in each]
            yield Secret(path.name, lines[0] if b"-----" in raw else raw, (path,))


def found_in(secret: Secret, places: dict[str, bytes]) -> list[str]:
    homes = {str(home) for home in secret.homes}
    return [place for place, text in places.items() if secret.text in text and place not in homes]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_secret_is_anywhere_but_where_it_belongs(network: Network, tmp_path: Path) -> None:
    network.start_gateway(tls=True, tls_port=0, require_key=True)
    root = make_key(network, "root", "--scope", "admin")
    infer = make_key(network, "infer", "--scope", "infer", DIN_API_KEY_FILE=str(root))
    keys = {"root": root.read_text().strip(), "infer": infer.read_text().strip()}
    network.start_node("edge-1")
    model = chain(tmp_path / "small.onnx")
    done = network.din(
        "model", "register", str(model), "--model-id", "small", "--key-file", str(root), seconds=120
    )
    assert done.returncode == 0, done.stderr

    facts = json.loads((network.folder / "gateway" / "gateway.json").read_text())
    gateways = tuple(facts["tls_urls"])
    tokens = [make_token(network, keys["root"]) for _ in range(2)]
    with Client(network.url, key_file=infer) as asking:
        asking.infer("small", {"x": np.ones((1, 8), np.float32)})
    answers = list(ask_rightly_and_wrongly(network, keys))
    shown = [
        ("joined", tokens[0]["token"]),
        ("again", tokens[0]["token"]),
        ("guess", other(tokens[1]["token"])),
        ("short", tokens[1]["token"][:-1]),
    ]
    codes: list[int] = []
    for name, text in shown:
        code, told = join(network, name, text, gateways)
        codes.append(code)
        answers.append(told)
    assert [code == 0 for code in codes] == [True, False, False, False]
    answers += look_with(network, root)

    secrets = [
        *(
            Secret(name, key.rpartition(".")[2].encode(), (root, infer))
            for name, key in keys.items()
        ),
        *(Secret(each["id"], each["token"].rpartition(".")[2].encode()) for each in tokens),
        *private_keys(network.folder),
    ]
    assert len(secrets) >= 4 + len(("ca.key", "gateway.key", "node.key"))
    places = {f"answer {index}": text for index, text in enumerate(answers)}
    places |= places_of(family(network))
    network.stop()
    places |= files_below(network.folder)
    for secret in secrets:
        assert not found_in(secret, places), secret.name
    # The search would have seen them: what is no secret of the same things is there.
    known = Secret("key id", keys["infer"].partition(".")[0].removeprefix("din_").encode())
    assert any("/audit/" in place for place in found_in(known, places))
    assert any(
        "/proc/" in place for place in found_in(Secret("cluster", network.cluster.encode()), places)
    )


def test_programs_leave_no_core_and_their_folders_are_closed(network: Network) -> None:
    network.start_gateway(tls=True, tls_port=0)
    network.start_node("edge-1")
    network.wait_ready("edge-1")
    path = chain(network.folder / "small.onnx")
    assert network.din("model", "register", str(path), "--model-id", "small").returncode == 0

    def workers() -> bool:
        return len(family(network)) >= len(("gateway", "agent", "zygote", "worker"))

    wait_for("a worker runs", workers)
    for process in family(network):
        limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        (core,) = (line for line in limits if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["0", "0"], process
    for state in ("gateway", "edge-1"):
        folder = network.folder / state
        for each in (folder, *(found for found in folder.rglob("*") if not found.is_symlink())):
            assert not each.stat().st_mode & 0o077, each


def test_a_key_in_the_environment_of_the_command_is_not_given_to_what_it_starts(
    network: Network,
) -> None:
    network.start_gateway()
    secret = "din_0a0b0c0d." + "x" * 43
    done = network.din(
        "node", "start", "--name", "edge-2", "--port", "0", "--detach",
        env={"DIN_API_KEY": secret},
    )  # fmt: skip
    try:
        records = list((network.folder / "home").rglob("run/*.json"))
        assert records, done.stderr
        pid = json.loads(records[0].read_text())["pid"]
        main = psutil.Process(pid)
        shown = places_of([main, *main.children(recursive=True)])
        assert shown
        assert not found_in(Secret("key", secret.encode()), shown)
    finally:
        network.din("node", "stop", "edge-2")
        network.din("down")
