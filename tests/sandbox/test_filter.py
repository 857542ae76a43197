"""The filter's own logic, for every architecture, by an interpreter of what kernels run."""

from __future__ import annotations

import errno
import struct
from typing import Final

import pytest

from din.sandbox.bpf import program
from din.sandbox.rules import ABSENT, worker_rules
from din.sandbox.syscalls import ARCHITECTURES, Architecture

PID: Final = 4711
ALLOWED: Final = 0x7FFF0000
REFUSED: Final = 0x00050000 | errno.EPERM
UNKNOWN: Final = 0x00050000 | errno.ENOSYS
KILLED: Final = 0x80000000
MACHINES: Final = list(ARCHITECTURES.values())
UPPER: Final = 1 << 32


def answer(code: bytes, audit: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What a filter says of one call."""
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, audit, 0, *padded)
    steps = list(struct.iter_unpack("<HBBI", code))
    at = accumulator = 0
    while True:
        kind, then, otherwise, value = steps[at]
        at += 1
        if kind == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif kind == 0x54:
            accumulator &= value
        elif kind == 0x15:
            at += then if accumulator == value else otherwise
        elif kind == 0x35:
            at += then if accumulator >= value else otherwise
        else:
            assert kind == 0x06
            return int(value)


def filter_of(machine: Architecture, *, has_folder: bool = False) -> bytes:
    rules = worker_rules(PID, has_folder=has_folder)
    return program(machine.audit, machine.numbers, rules, ABSENT)


def said(machine: Architecture, name: str, *arguments: int, has_folder: bool = False) -> int:
    code = filter_of(machine, has_folder=has_folder)
    return answer(code, machine.audit, machine.numbers[name], arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_computing_needs_is_allowed(machine: Architecture) -> None:
    for name in ("read", "futex", "recvmsg", "sendmsg", "exit_group", "clock_gettime", "ppoll"):
        assert said(machine, name) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_an_engine_that_makes_code_may_run_what_it_wrote_and_still_no_file(
    machine: Architecture,
) -> None:
    code = program(machine.audit, machine.numbers, worker_rules(PID, makes_code=True), ABSENT)
    written_and_run, read_and_run = 7, 5
    for protection in (written_and_run, read_and_run):
        mprotect = (machine.audit, machine.numbers["mprotect"], (0, 4096, protection))
        assert answer(code, *mprotect) == ALLOWED
        assert answer(filter_of(machine), *mprotect) == REFUSED
        mapped = (machine.audit, machine.numbers["mmap"], (0, 4096, protection, 2, 3))
        assert answer(code, *mapped) == REFUSED
    for name in ("execve", "openat", "socket", "clone3", "memfd_create"):
        number = machine.numbers.get(name)
        assert number is None or answer(code, machine.audit, number) != ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_that_no_rule_names_is_refused(machine: Architecture) -> None:
    code = filter_of(machine)
    named = {
        machine.numbers[name] for name in (*worker_rules(PID), *ABSENT) if name in machine.numbers
    }
    for number in set(range(600)) - named:
        assert answer(code, machine.audit, number) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_may_be_started_and_neither_processes_nor_namespaces(machine: Architecture) -> None:
    assert said(machine, "clone", 0x3D0F00) == ALLOWED
    assert said(machine, "clone", 0x01200011) == REFUSED  # fork
    assert said(machine, "clone", 0x3D0F00 | 0x10000000) == REFUSED  # with a user namespace
    assert said(machine, "clone3") == UNKNOWN


@pytest.mark.parametrize("machine", MACHINES)
def test_who_needs_no_threads_starts_none(machine: Architecture) -> None:
    rules = worker_rules(PID, has_threads=False)
    code = program(machine.audit, machine.numbers, rules, ABSENT)
    assert answer(code, machine.audit, machine.numbers["clone"], (0x3D0F00,)) == REFUSED
    assert answer(code, machine.audit, machine.numbers["clone3"]) == UNKNOWN


@pytest.mark.parametrize("machine", MACHINES)
def test_no_memory_can_be_executed(machine: Architecture) -> None:
    for name in ("mmap", "mprotect"):
        assert said(machine, name, 0, 4096, 3) == ALLOWED
        assert said(machine, name, 0, 4096, 5) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_reach_the_worker_alone_and_limits_are_only_read(machine: Architecture) -> None:
    assert said(machine, "tgkill", PID, PID, 6) == ALLOWED
    assert said(machine, "tgkill", PID + 1, PID + 1, 9) == REFUSED
    assert said(machine, "prlimit64", 0, 7, 0) == ALLOWED
    assert said(machine, "prlimit64", 1, 7, 0) == REFUSED
    assert said(machine, "prlimit64", 0, 7, 0x1000) == REFUSED
    assert said(machine, "prlimit64", 0, 7, UPPER) == REFUSED  # the pointer's upper half alone


@pytest.mark.parametrize("machine", MACHINES)
def test_files_are_opened_only_where_there_is_a_folder(machine: Architecture) -> None:
    assert said(machine, "openat") == REFUSED
    assert said(machine, "openat", has_folder=True) == ALLOWED
    assert said(machine, "newfstatat", 3, 0, 0, 0x1000) == ALLOWED
    assert said(machine, "newfstatat", 3, 0, 0, 0) == REFUSED


def test_other_forms_of_calls_than_the_machines_own_are_not_mistaken_for_them() -> None:
    machine = ARCHITECTURES["x86_64"]
    code = filter_of(machine)
    assert answer(code, 0x40000003, machine.numbers["read"]) == KILLED  # 32 bits
    assert answer(code, machine.audit, 0x40000000 | machine.numbers["read"]) == UNKNOWN  # x32
