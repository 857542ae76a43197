"""Run as a program: confines itself as a worker or the carver does, as no more than a user, and
attacks.

Prints one JSON object: the level, and what each attack met ("OPEN" where it got through).
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from din.carver import confine as carver
from din.sandbox import enter
from din.worker.confine import open_place

NOBODY = 65534
PTRACE_SEIZE = 0x4206  # to attach would stop whoever runs this
MEMORY_BYTES = 1 << 30
MODEL_BYTES = 10_000
LIBC = ctypes.CDLL(None, use_errno=True)
IO_URING_SETUP, BPF, PERF_OPEN, KEYCTL, PTRACE = (
    (425, 321, 298, 250, 101) if os.uname().machine == "x86_64" else (425, 280, 241, 219, 117)
)


def call(number: int, *arguments: object) -> None:
    ctypes.set_errno(0)
    result = LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def many(count: int, once: Callable[[], None]) -> None:
    for number in range(count):
        try:
            once()
        except (OSError, RuntimeError, MemoryError) as error:
            # Stopped somewhere on the way is stopped.
            code = getattr(error, "errno", None) or errno.EAGAIN
            raise OSError(code, f"after {number}") from error


def fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


HELD: list[object] = []
WAIT = threading.Event()


def thread() -> None:
    made = threading.Thread(target=WAIT.wait, daemon=True)
    made.start()


def hog() -> None:
    HELD.append(bytearray(64 << 20))


def connect(family: int, kind: int, address: object) -> None:
    with socket.socket(family, kind) as made:
        made.connect(address)
        made.send(b"x")


def attacks(given: argparse.Namespace) -> dict[str, Callable[[], object]]:
    root = given.folder
    tcp, udp = given.tcp, given.udp
    parent = os.getppid()
    return {
        "read_passwd": lambda: Path("/etc/passwd").read_text(),
        "read_secret": lambda: Path(root, "secret").read_text(),
        "write_model": lambda: Path(root, "model").write_text("x"),
        "write_tmp": lambda: Path(root, "new").write_text("x"),
        "tcp": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", tcp)),
        "udp": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", udp)),
        "unix_abstract": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + given.name),
        "unix_path": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, f"{root}/socket"),
        "exec": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "exec_direct": lambda: os.execv("/nonexistent", ["x"]),
        "forkbomb": lambda: many(150, fork),
        "threadbomb": lambda: many(400, thread),
        "memhog": lambda: many(32, hog),
        "ptrace": lambda: call(PTRACE, PTRACE_SEIZE, parent, 0, 0),
        "kill0": lambda: os.kill(parent, 0),
        "proc_environ": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
        "io_uring": lambda: call(IO_URING_SETUP, 4, ctypes.create_string_buffer(120)),
        "bpf": lambda: call(BPF, 0, ctypes.create_string_buffer(128), 128),
        "perf": lambda: call(PERF_OPEN, ctypes.create_string_buffer(128), 0, -1, -1, 0),
        "keyctl": lambda: call(KEYCTL, 0, -3, 1),
        "mount": call_mount,
        "userns": unshare,
        "fdhog": lambda: many(2000, lambda: HELD.append(os.dup(0))),
    }


def call_mount() -> None:
    if LIBC.mount(b"none", b"/", b"tmpfs", 0, None) < 0:
        raise OSError(ctypes.get_errno(), "mount")


def unshare() -> None:
    if LIBC.unshare(0x10000000) < 0:
        raise OSError(ctypes.get_errno(), "unshare")


def met(name: str, attack: Callable[[], object]) -> str:
    try:
        attack()
    except OSError as error:
        if name == "exec_direct" and error.errno == errno.ENOENT:
            return "OPEN"  # the call got through to look for a program that is not there
        return errno.errorcode.get(error.errno or 0, "?")
    return "OPEN"


def confined(given: argparse.Namespace) -> int:
    """The level that was reached, by the steps of the role."""
    found = enter.Surroundings(False, "left out")
    is_carver = given.role == "carver"
    if "namespaces" not in given.without:
        found = carver.part_from_others() if is_carver else enter.leave_others()
    if is_carver:
        return carver.give_up(found, MODEL_BYTES, MODEL_BYTES)
    open_place()
    return enter.confine(enter.leave_files(found), memory_bytes_max=MEMORY_BYTES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--tcp", type=int, required=True)
    parser.add_argument("--udp", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--without", default="")
    parser.add_argument("--as", dest="role", default="worker")
    given = parser.parse_args()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        # As if the user had started this program: the change of user has hidden it.
        LIBC.prctl(4, 1, 0, 0, 0)
    if "landlock" in given.without:
        vars(enter)["landlock_version"] = lambda: 0
    level = -1
    if "everything" not in given.without:
        level = confined(given)
    results = {}
    for name, attack in attacks(given).items():
        results[name] = met(name, attack)
        HELD.clear()
    with suppress(OSError):
        WAIT.set()
    sys.stdout.write(json.dumps({"level": level, "met": results}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
