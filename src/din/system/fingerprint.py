"""What this machine is: processor, memory, accelerator, engines. Asked once, at start.

A container's limits count, not the host's size: cores are the smaller of affinity and cgroup quota,
memory the smaller of the machine's and the cgroup limit, versions 1 and 2, whichever is in force.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from din.domain.node import ZSTD_WORD
from din.errors import UsageError
from din.system import packages
from din.system.accelerator_facts import MIB, Accelerator
from din.system.readings import read_number, read_text
from din.version import __version__
from din.wire.registration import MODEL_BYTES_MAX, is_name

ISA_FLAGS: Final = {
    "avx2": "avx2", "fma": "fma", "avx512f": "avx512f", "avx512_vnni": "avx512_vnni",
    "avx_vnni": "avx_vnni", "avx512_bf16": "avx512_bf16", "amx_int8": "amx_int8",
    "asimd": "neon", "neon": "neon", "asimdhp": "fp16", "asimddp": "dotprod", "sve": "sve",
    "i8mm": "i8mm", "bf16": "bf16", "aes": "aes",
}  # fmt: skip
"""Kernel flag -> the word DIN uses: those that change numbers or speed of inference, and `aes`,
by which the cipher of sealed slices is chosen."""

DISTRIBUTIONS: Final = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-cann"),
    "openvino": ("openvino",),
    "tensorrt": ("tensorrt", "tensorrt-cu12", "tensorrt-cu11"),
    "ncnn": ("ncnn",),
}
"""Backend -> distributions that bring it, most usual first."""
LIBRARIES: Final = {ZSTD_WORD: ("zstandard",)}
"""What slices may ask for beside engines -> distributions that bring it."""
UNLIMITED_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as a huge number."""
_CPU_NOISE: Final = re.compile(
    r"\((R|TM)\)|\b(CPU|Processor|\d+-Core|with .*)\b|@.*$", re.IGNORECASE
)


class Fingerprint(Struct, frozen=True, kw_only=True):
    """The static half of a node's profile."""

    device_type: str
    cpu_model: str
    cpu_isa: tuple[str, ...]
    cpu_cores: float
    memory_mib: int
    accelerator: str | None
    accelerator_memory_mib: int | None
    backends: tuple[str, ...]
    versions: dict[str, str]
    sha256: str
    """First 16 hex digits over the hardware part: equal on two equal machines."""


def take_fingerprint(
    accelerator: Accelerator | None = None, root: Path = Path("/"), affinity: int | None = None
) -> Fingerprint:
    """Ask the machine. Never fails for what is absent."""
    cpuinfo = read_text(root / "proc/cpuinfo") or ""
    versions = installed_versions()
    model, isa = cpu_model(cpuinfo, root), cpu_isa(cpuinfo)
    total_mib = memory_mib(root)
    hardware = (model, *isa, str(total_mib), accelerator.name if accelerator else "")
    return Fingerprint(
        device_type=device_type(accelerator, versions),
        cpu_model=model,
        cpu_isa=isa,
        cpu_cores=cpu_cores(root, affinity),
        memory_mib=total_mib,
        accelerator=_cut(accelerator.name) if accelerator else None,
        accelerator_memory_mib=accelerator.memory_mib if accelerator else None,
        backends=tuple(each for each in DISTRIBUTIONS if each in versions),
        versions=versions,
        sha256=hashlib.sha256("\n".join(hardware).encode()).hexdigest()[:16],
    )


def device_type(accelerator: Accelerator | None, versions: dict[str, str]) -> str:
    """The string that slices are pinned to, such as `x86_64-cpu` or `x86_64-cuda11.8-trt8.6`."""
    arch = platform.machine() or "unknown"
    if accelerator is None:
        return f"{arch}-cpu"
    tensorrt = versions.get("tensorrt", "")
    toolkit = ".".join(tensorrt.split(".")[:2])
    suffix = f"-trt{toolkit}" if toolkit and accelerator.device_part.startswith("cuda") else ""
    return f"{arch}-{accelerator.device_part}{suffix}"


def cpu_model(cpuinfo: str, root: Path) -> str:
    """The processor's name without trade marks; on ARM boards the board's name."""
    for key in ("model name", "Hardware", "Model"):
        found = re.search(rf"^{key}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
        if found:
            return _cut(" ".join(_CPU_NOISE.sub(" ", found[1]).split()))
    board = read_text(root / "proc/device-tree/model")
    return _cut(board.strip()) if board else (platform.machine() or "unknown")


def cpu_isa(cpuinfo: str) -> tuple[str, ...]:
    """Instruction sets in the order of ISA_FLAGS."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = set(found[1].split()) if found else set[str]()
    return tuple(dict.fromkeys(word for flag, word in ISA_FLAGS.items() if flag in flags))


def cpu_cores(root: Path = Path("/"), affinity: int | None = None) -> float:
    """The smaller of affinity and the tightest cgroup quota, for example 0.5."""
    allowed = len(os.sched_getaffinity(0)) if affinity is None else affinity
    return round(max(0.01, min([float(allowed), *_cpu_quotas(root)])), 2)


def memory_mib(root: Path = Path("/")) -> int:
    """The smaller of the machine's memory and the tightest cgroup limit."""
    found = re.search(
        r"^MemTotal:\s*(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE
    )
    total = int(found[1]) * 1024 if found else UNLIMITED_BYTES
    bound = min([total, *memory_limits(root)])
    return 0 if bound >= UNLIMITED_BYTES else bound // MIB


def memory_limits(root: Path) -> Iterator[int]:
    """Memory limits in bytes of this process's cgroup and those above it."""
    for folder in cgroup_folders(root, ""):
        yield from _limit(folder / "memory.max")
    for folder in cgroup_folders(root, "memory"):
        yield from _limit(folder / "memory.limit_in_bytes")


def _limit(path: Path) -> Iterator[int]:
    limit = read_number(path)
    if limit is not None and 0 < limit < UNLIMITED_BYTES:
        yield int(limit)


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in cgroup_folders(root, ""):
        quota, _, period = (read_text(folder / "cpu.max") or "").strip().partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)
    for folder in cgroup_folders(root, "cpu"):
        quota_us = read_number(folder / "cpu.cfs_quota_us")
        period_us = read_number(folder / "cpu.cfs_period_us")
        if quota_us and period_us and quota_us > 0:
            yield quota_us / period_us


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup and its ancestors; controller "" = version 2."""
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        is_ours = names == "" if controller == "" else controller in names.split(",")
        if not is_ours:
            continue
        bases = [root / "sys/fs/cgroup"] if not controller else [
            root / "sys/fs/cgroup" / names, root / "sys/fs/cgroup" / controller
        ]  # fmt: skip
        parts = [each for each in path.split("/") if each not in ("", "..")]
        for base in bases:
            for depth in range(len(parts), -1, -1):
                yield base.joinpath(*parts[:depth])


def installed_versions() -> dict[str, str]:
    """Versions of DIN, of engines and libraries that are installed, without importing them."""
    found = {"din": __version__}
    words = {**DISTRIBUTIONS, **LIBRARIES}
    here = packages.installed_versions(tuple(each for v in words.values() for each in v))
    for word, names in words.items():
        version = next((here[name] for name in names if name in here), None)
        if version is not None:
            found[word] = version[:32]
    return found


def node_name(host: str) -> str:
    """A node name made of a host name: lower case, what is not allowed becomes '-'.
    Raises UsageError when nothing is left."""
    name = re.sub(r"[^a-z0-9]+", "-", host.partition(".")[0].lower())[:63].strip("-")
    if not is_name(name):
        raise UsageError(f"host name {host!r} gives no node name", hint="choose one with --name")
    return name


def _cut(text: str) -> str:
    encoded = text.encode()[:MODEL_BYTES_MAX].decode(errors="ignore")
    return "".join(each for each in encoded if each.isprintable()).strip()
