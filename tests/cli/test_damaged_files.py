"""Files that a person or a program wrote wrong: model files with their strategies, and settings.

They end in our own words, in memory and work in proportion to their size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from din.cli.knobs import build
from din.cli.model_file import check_model_file
from din.cli.sources import read_file
from din.config import GatewayConfig, NodeConfig
from din.errors import DinError
from tests import mutants

SHORT, LONG = 400, 30_000
SMALL, LARGE = 250, 4000
"""Keys of a file that is all keys."""
YAML_CALLS_FACTOR = 400
"""The library reads character by character, in Python, and each file is read for both programs."""
MODEL_FILES = (
    {
        "model_id": "yolov5s",
        "onnx_path": "yolov5s.onnx",
        "slicing_strategy": {
            "type": "graph_partition",
            "partition_points": ["model.9", "model.13"],
            "backend_map": {"model.0:model.9": "onnxruntime", "model.10:model.24": "openvino"},
            "slices": [{"name": "backbone", "device_type": "x86_64"}, {"name": "neck"}, {}],
            "ranges": [{"range": "model.0:model.1", "sensitive": True}],
            "precision": "fp16",
        },
        "inputs": {"x": ["B", 3, 640, None]},
        "backend_options": {"threads": 2, "spinning": False},
        "before": {"name": "image", "size": [640, 640]},
        "replicas": 2,
    },
    {
        "model_id": "m",
        "onnx_path": "m.onnx",
        "slicing_strategy": {"type": "auto", "objective": "latency", "slices_max": 4},
        "calibration_inputs": "inputs.npz",
        "encrypt": None,
    },
)
SETTINGS = (
    b"port: 8000\nhost: 127.0.0.1\ngateway:\n  policy: weighted-least-load\n  tls: 'on'\n",
    b"node:\n  name: edge-1\n  labels: {line: '4', side: left}\n  gateway: [a, b]\n# end\n",
    b"{gateway: {port: 1, node_heartbeat_interval_ms: 3000}, node: {cpu_cores: 1.5}}",
    b"port: !!int '7'\nname: !!str 5\nx: !!set {a}\ny: 2026-11-30\nz: 1:2:3\n",
)
WORDS = (b"!!timestamp ", b"!!bool ", b"!!float ", b"&a ", b"*a", b"<<: ", b"? ", b"- ", b"[", b"{")


@pytest.fixture
def model_file(tmp_path: Path):
    path = tmp_path / "model.json"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        for finding in check_model_file(path).findings:
            assert finding.place.startswith(str(path))

    return read


@pytest.fixture
def settings_file(tmp_path: Path):
    path = tmp_path / "config.yaml"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        build(GatewayConfig, read_file("gateway", path))
        build(NodeConfig, read_file("node", path))

    return read


def damaged_model_files(count: int, seed: int) -> Iterator[bytes]:
    yield from map(mutants.as_json, mutants.value_mutants(MODEL_FILES, count // 2, seed))
    texts = [b"// as in the seeds\n" + json.dumps(each, indent=1).encode() for each in MODEL_FILES]
    yield from mutants.bytes_mutants(texts, count // 2, seed)


def damaged_settings(count: int, seed: int) -> Iterator[bytes]:
    return mutants.bytes_mutants([*SETTINGS, *WORDS], count, seed)


def test_damaged_model_files_end_in_findings_or_our_words(model_file) -> None:
    taken, refused = mutants.check(model_file, damaged_model_files(SHORT, 1), DinError)
    assert taken > SHORT / 10
    assert refused > SHORT / 10


def test_damaged_settings_end_in_our_words(settings_file) -> None:
    taken, refused = mutants.check(settings_file, damaged_settings(SHORT, 1), DinError)
    assert refused > SHORT / 10
    assert taken > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_many_damaged_files_end_in_our_words(model_file, settings_file, seed: int) -> None:
    mutants.check(model_file, damaged_model_files(LONG, seed), DinError)
    mutants.check(settings_file, damaged_settings(LONG, seed), DinError)


def large_model_files(count: int) -> Iterator[bytes]:
    """What costs more than its size, where something is looked at again and again."""
    keys = {f"key{at}": at for at in range(count)}
    for more in (
        keys,
        {"slicing_strategy": keys},
        {"slicing_strategy": {"partition_points": list(keys)}},
        {"slicing_strategy": {"partition_points": [1] * count}},
        {"slicing_strategy": {"slices": [keys] * 10}},
        {"slicing_strategy": {"backend_map": keys}},
        {"inputs": keys},
        {"x" * 10 * count: 1},
        {"model_id": "x" * 10 * count},
    ):
        yield json.dumps(MODEL_FILES[0] | more).encode()
    yield b"[" * 10 * count
    yield b'{"a":' * 10 * count
    yield b"/*" * 5 * count
    yield b"//\n" * 5 * count + b"{}"
    yield b"9" * 10 * count
    yield b'"' + b"\\u0041" * 2 * count


@pytest.mark.parametrize("count", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_large_model_files_cost_in_proportion_to_their_size(model_file, count: int) -> None:
    mutants.check_cost(model_file, large_model_files(count), DinError)


def large_settings(count: int) -> Iterator[bytes]:
    nested = b"port: [&a [1,1,1,1,1,1,1,1,1,1]"
    yield (
        nested
        + b"".join(
            b", &%c [%s]" % (98 + at, b",".join([b"*%c" % (97 + at)] * 10)) for at in range(20)
        )
        + b"]"
    )
    yield b"port: &a [*a]"
    yield b"port: " + b"[" * 5 * count
    yield b"- " * 5 * count
    yield b"port: " + b"9" * 5000
    yield b"x" * 1000 + b": 1"
    yield b"node: {labels: {%s}}" % b",".join(b"k%d: v" % at for at in range(count // 2))


@pytest.mark.parametrize("count", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_large_settings_cost_in_proportion_to_their_size(settings_file, count: int) -> None:
    mutants.check_cost(settings_file, large_settings(count), DinError, YAML_CALLS_FACTOR)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port: &a 1\nnode: {port: *a}", ":2: *a stands for"),
        ("port: " + "[" * 40, "nested over 32"),
        ("port: 2026-99-99", "not YAML: month must be"),
        ("port: " + "9" * 5000, "not YAML: Exceeds"),
        ("port: !!bool x", "not YAML: 'x'"),
        ("port: !!timestamp x", "not YAML"),
        ('port: "\\ud800"', r"port is '\ud800'"),
        ("port: [%s]" % ("1," * 500), "port is [1, 1, 1"),
    ],
)
def test_settings_that_only_look_like_yaml_are_told_by_file(
    settings_file, tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(DinError) as caught:
        settings_file(text.encode())
    assert words in caught.value.message
    assert str(tmp_path / "config.yaml") in caught.value.message
    assert len(caught.value.message) < 500 + len(str(tmp_path))
