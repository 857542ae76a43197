"""The door: what a worker does, once, before it reads a byte of a model.

Levels, from strong to weak: 3 = filter of system calls, Landlock and namespaces; 2 = the filter and
namespaces (kernels without Landlock, as on a Raspberry Pi); 1 = the filter without namespaces;
0 = limits only.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import Final, NamedTuple

from din.errors import Unavailable
from din.sandbox.bpf import program
from din.sandbox.kernel import (
    drop_capabilities,
    filter_calls,
    give_up_files,
    landlock_version,
    promise_no_privileges,
)
from din.sandbox.namespaces import (
    FOLDER,
    count_alone,
    empty_the_root,
    own_folder,
    part_from_others,
)
from din.sandbox.rules import ABSENT, worker_rules
from din.sandbox.syscalls import ARCHITECTURES
from din.system.privacy import hide_memory

MACHINE: Final = os.uname().machine
DESCRIPTORS_MAX: Final = 64
TASKS_MAX: Final = 64
FOLDER_BYTES: Final = 256 * 1024 * 1024


class Surroundings(NamedTuple):
    """What a zygote reached for itself, and its workers have from it."""

    has_namespaces: bool
    reason: str = ""
    """Why there are none."""


def leave_others(*, keeps_network: bool = False) -> Surroundings:
    """First step of a zygote, before its imports; single-threaded, its memory not hidden yet.
    `keeps_network`: its workers may have to connect."""
    if MACHINE not in ARCHITECTURES:
        return Surroundings(False, f"no filter is known for {MACHINE}")
    try:
        part_from_others(keeps_network=keeps_network)
    except OSError as error:
        return Surroundings(False, f"no namespaces: {error.strerror or error}")
    return Surroundings(True)


def leave_files(found: Surroundings) -> Surroundings:
    """Second step of a zygote, after its imports. What it needs of files is to be open already."""
    if not found.has_namespaces:
        return found
    try:
        empty_the_root(MACHINE)
    except OSError as error:
        return Surroundings(False, f"no namespaces: {error.strerror or error}")
    return found


def confine(
    found: Surroundings,
    *,
    tasks_max: int = TASKS_MAX,
    memory_bytes_max: int = 0,
    wants_folder: bool = False,
    has_threads: bool = True,
    port: int = 0,
    is_insecure: bool = False,
    makes_code: bool = False,
) -> int:
    """Give everything up; the level that was reached. The process has one thread.

    `tasks_max` bounds its threads, where namespaces let us count them apart; without `has_threads`
    it starts none. `memory_bytes_max` bounds its own memory, 0 = as much as the machine has.
    `wants_folder`: its engine may have to write a file; where there are namespaces, FOLDER is a
    folder of its own then. `makes_code`: its engine makes machine code of a model, so memory that
    it wrote may be run. `port`: it may connect to this one by TCP, and to no other where Landlock
    knows ports. Raises Unavailable where level 1 is not reached and `is_insecure` does not allow
    that; OSError when a step fails that this kernel knows.
    """
    wants_folder = wants_folder and found.has_namespaces
    if found.has_namespaces:
        if wants_folder:
            own_folder(FOLDER_BYTES)
        count_alone()
        _limit(resource.RLIMIT_NPROC, tasks_max)
    _limit(resource.RLIMIT_NOFILE, DESCRIPTORS_MAX)
    _limit(resource.RLIMIT_FSIZE, FOLDER_BYTES if wants_folder else 0)
    _limit(resource.RLIMIT_DATA, memory_bytes_max or _machine_bytes())
    hide_memory()
    drop_capabilities()
    promise_no_privileges()
    has_landlock = bool(landlock_version())
    if has_landlock:
        give_up_files(FOLDER if wants_folder else "", port)
    if MACHINE not in ARCHITECTURES:
        if is_insecure:
            return 0
        raise Unavailable(
            f"nothing here confines what reads and runs models: {found.reason}",
            hint="start DIN with --insecure only when every model here is your own",
        )
    machine = ARCHITECTURES[MACHINE]
    further = {"has_network": port > 0, "makes_code": makes_code}
    rules = worker_rules(os.getpid(), has_folder=wants_folder, has_threads=has_threads, **further)
    filter_calls(program(machine.audit, machine.numbers, rules, ABSENT))
    return (3 if has_landlock else 2) if found.has_namespaces else 1


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")


def _limit(kind: int, value: int) -> None:
    """Lower a limit, never above what holds already."""
    hard = resource.getrlimit(kind)[1]
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with suppress(ValueError):  # as nobody we may only lower it, and it was lower
        resource.setrlimit(kind, (limit, limit))
