"""The numbers of system calls of aarch64 against the kernel's own table, on any machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from din.sandbox.syscalls import AARCH64

HEADER = Path("/usr/include/asm-generic/unistd.h")


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's headers (linux-libc-dev) are absent")
def test_aarch64_counts_system_calls_as_the_kernels_header_does() -> None:
    found = re.findall(
        r"^#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", HEADER.read_text(), re.MULTILINE
    )
    numbers = {name: int(number) for name, number in found}
    numbers["newfstatat"] = numbers["fstatat"]  # as machines of 64 bits call it
    known = {name: numbers.get(name) for name in AARCH64.numbers}
    assert known == AARCH64.numbers
