"""The fingerprint, on trees of files like those of real machines."""

from pathlib import Path

import msgspec
import pytest

from din.domain.device import parse_device_type
from din.domain.node import NodeId, NodeProfile
from din.errors import UsageError
from din.system.accelerator_facts import Accelerator
from din.system.fingerprint import (
    cpu_cores,
    cpu_isa,
    cpu_model,
    device_type,
    memory_mib,
    node_name,
    take_fingerprint,
)
from din.wire.registration import encode_registration

XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz
flags\t\t: fpu sse2 avx2 fma avx512f avx512_vnni
"""
RASPBERRY = """processor\t: 0
Features\t: fp asimd evtstrm aes crc32 cpuid asimdhp asimddp
Model\t\t: Raspberry Pi 5 Model B Rev 1.0
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_an_intel_server(tmp_path: Path) -> None:
    assert cpu_model(XEON, tmp_path) == "Intel Xeon Platinum 8375C"
    assert cpu_isa(XEON) == ("avx2", "fma", "avx512f", "avx512_vnni")


def test_a_raspberry_pi(tmp_path: Path) -> None:
    assert cpu_model(RASPBERRY, tmp_path) == "Raspberry Pi 5 Model B Rev 1.0"
    assert cpu_isa(RASPBERRY) == ("neon", "fp16", "dotprod", "aes")


def test_a_board_without_model_in_cpuinfo_is_named_by_its_device_tree(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/device-tree/model": "Firefly ROC-RK3399-PC\0"})
    assert cpu_model("processor : 0\n", tmp_path) == "Firefly ROC-RK3399-PC"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8.0),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n", "proc/self/cgroup": "0::/\n"}, 0.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n", "proc/self/cgroup": "0::/\n"}, 8.0),
        (
            {
                "proc/self/cgroup": "0::/slice/unit\n",
                "sys/fs/cgroup/slice/unit/cpu.max": "max 100000\n",
                "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
            },
            1.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpuset:/\n4:cpu,cpuacct:/docker/abc\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"}, 8.0),
    ],
    ids=["bare", "v2-half", "v2-max", "v2-parent", "v1", "v1-unlimited", "nonsense"],
)
def test_cores_are_the_smaller_of_affinity_and_quota(tmp_path: Path, files, cores: float) -> None:
    assert cpu_cores(tree(tmp_path, files), affinity=8) == cores


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8000),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1073741824\n"}, 1024),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 8000),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "536870912\n",
            },
            512,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            8000,
        ),
    ],
    ids=["bare", "v2", "v2-max", "v1", "v1-unlimited"],
)
def test_memory_is_the_smaller_of_machine_and_limit(tmp_path: Path, files, expected: int) -> None:
    tree(tmp_path, {"proc/meminfo": f"MemTotal:       {8000 * 1024} kB\n", **files})
    assert memory_mib(tmp_path) == expected


@pytest.mark.parametrize(
    ("accelerator", "versions", "expected"),
    [
        (None, {}, "x86_64-cpu"),
        ("cuda11.8", {"tensorrt": "8.6.1"}, "x86_64-cuda11.8-trt8.6"),
        ("cuda12.4", {}, "x86_64-cuda12.4"),
        ("ascend310p-cann6.3", {"tensorrt": "8.6.1"}, "x86_64-ascend310p-cann6.3"),
    ],
)
def test_the_device_type_is_detected(monkeypatch, accelerator, versions, expected) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = accelerator and Accelerator(
        name="x", memory_mib=None, device_part=accelerator, source="nvml"
    )
    assert device_type(found, versions) == expected
    assert str(parse_device_type(expected)) == expected


def test_this_machine_has_a_fingerprint_that_fits_into_a_registration() -> None:
    found = take_fingerprint()
    assert found.cpu_cores > 0
    assert found.memory_mib > 0
    assert "onnxruntime" in found.backends
    assert found == take_fingerprint()
    fields = msgspec.structs.asdict(found)
    fields["fingerprint_sha256"] = fields.pop("sha256")
    profile = NodeProfile(
        node_id=NodeId("0" * 16),
        session=1,
        name="here",
        addresses=("tcp:192.168.100.200:18080",),
        **fields,
    )
    assert len(encode_registration(profile, "factory")) < 380


def test_an_empty_tree_fails_nothing(tmp_path: Path) -> None:
    found = take_fingerprint(root=tmp_path)
    assert found.memory_mib == 0
    assert found.cpu_isa == ()


@pytest.mark.parametrize(
    ("host", "name"), [("Edge_GPU.local", "edge-gpu"), ("a" * 80, "a" * 63), ("-x-", "x")]
)
def test_a_host_name_becomes_a_node_name(host: str, name: str) -> None:
    assert node_name(host) == name


def test_a_host_name_of_other_signs_asks_for_a_name() -> None:
    with pytest.raises(UsageError):
        node_name("\u5de5\u5382")
