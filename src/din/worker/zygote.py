"""The zygote: a process with the heavy libraries imported and nothing else, that forks workers.

Single-threaded always, holds no secret, opens nothing after its imports. It ends with its control
socket, and its workers end with it.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from din.backends.registry import entry_of
from din.errors import Internal
from din.sandbox.enter import leave_files, leave_others
from din.system.descriptors import close_all, receive_message, send_message
from din.system.privacy import hide_memory
from din.wire.worker import MESSAGE_BYTES_MAX, Exited, Fork, Forked, ForkFailed, ZygoteAnswer
from din.worker.confine import Place, die_with_parent, name_process, open_place
from din.worker.process import run_worker

CHANNELS_MAX: Final = 2
WORKERS_MAX: Final = 1024

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Fork)


USUAL: Final = (
    "PIL.Image",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.WebPImagePlugin",
    "din.adapters.registry",
)
PROBING: Final = ("din.backends.onnxruntime_backend", "din.backends.probe")
FOREIGN: Final = ("numpy.random", "din.foreign.session", "encodings.idna")
"""What a client of servers needs: no engine and no adapter."""


class Imports(NamedTuple):
    """What a zygote has for its workers."""

    engines: tuple[str, ...] = ()
    """Nothing = what every node needs: ONNX Runtime, adapters, probes."""
    with_probe: bool = False
    is_foreign: bool = False
    """Its workers are clients of servers of others, and nothing else."""

    @property
    def modules(self) -> tuple[str, ...]:
        """What is imported while there are files."""
        if self.is_foreign:
            return FOREIGN
        if not self.engines:
            return ("numpy.random", *USUAL, *PROBING)
        engines = tuple(entry_of(name).module for name in self.engines)
        return ("numpy.random", *(PROBING if self.with_probe else ()), *engines)

    @property
    def makes_code(self) -> bool:
        """One of the engines translates models to machine code."""
        return any(entry_of(name).makes_code for name in self.engines)


EVERY_NODE: Final = Imports()


def import_engines(imports: Imports) -> None:
    """Import what workers need, so that they share its pages; engines that are absent are left."""
    for name in imports.modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.stderr.write(f"din zygote: {name} is not usable: {error}\n")


def leave_folder() -> None:
    """Stand in a folder that does not exist any more: a relative path in a model leads nowhere.
    Where none can be made, in one of the kernel's, in which nobody puts a file."""
    try:
        folder = tempfile.mkdtemp(prefix="din-")
    except OSError:  # everything is read-only to us
        os.chdir("/proc/self/fdinfo")
        return
    os.chdir(folder)
    Path(folder).rmdir()


class Zygote:
    """Waits for orders and for the end of its children."""

    def __init__(self, control: socket.socket, place: Place) -> None:
        self._control = control
        self._pid = os.getpid()
        self._place = place
        self._workers: dict[int, tuple[int, int]] = {}
        """pidfd -> (worker id, pid)."""
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)

    def serve_forever(self) -> None:
        """Until the control socket closes."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    if not self._take_order():
                        return
                else:
                    self._reap(descriptor)

    def _take_order(self) -> bool:
        try:
            data, descriptors = receive_message(self._control, MESSAGE_BYTES_MAX)
        except OSError:
            return False
        if not data:
            close_all(descriptors)
            return False
        order = _DECODER.decode(data)
        try:
            self._fork(order, descriptors)
        except (OSError, Internal) as error:
            self._answer(ForkFailed(order.worker_id, f"no worker can be forked: {error}"))
        finally:
            close_all(descriptors)
        return True

    def _fork(self, order: Fork, descriptors: Sequence[int]) -> None:
        expected = len(order.artifacts) + 2 * len(order.channels)
        if len(descriptors) != expected or not 1 <= len(order.channels) <= CHANNELS_MAX:
            raise Internal(f"{len(descriptors)} descriptors came, {expected} were announced")
        if len(self._workers) >= WORKERS_MAX:
            raise Internal(f"there are {WORKERS_MAX} workers already")
        threads = len(os.listdir(self._place.tasks))  # noqa: PTH208 (a descriptor)
        if threads != 1:
            # Locks that another thread holds would stay locked in the child for ever.
            raise Internal(f"the zygote has {threads} threads and must not fork")
        pid = os.fork()
        if pid == 0:
            run_worker(order, descriptors, self._pid, self._place)
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = (order.worker_id, pid)
        self._poll.register(pidfd, select.POLLIN)
        self._answer(Forked(order.worker_id, pid), [pidfd])

    def _reap(self, pidfd: int) -> None:
        worker_id, pid = self._workers.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        exit_code = os.waitstatus_to_exitcode(status)
        self._answer(Exited(worker_id, exit_code, usage.ru_maxrss // 1024))

    def _answer(self, message: ZygoteAnswer, descriptors: Sequence[int] = ()) -> None:
        send_message(self._control, _ENCODER.encode(message), descriptors)


def run_zygote(
    control_descriptor: int,
    parent_pid: int,
    *,
    is_insecure: bool = False,
    imports: Imports = EVERY_NODE,
) -> int:
    """The zygote's main; the exit code."""
    surroundings = leave_others(keeps_network=imports.is_foreign)
    die_with_parent(parent_pid)
    hide_memory()
    with socket.socket(fileno=control_descriptor) as control:
        control.setblocking(True)
        import_engines(imports)
        place = open_place(is_insecure=is_insecure, makes_code=imports.makes_code)
        leave_folder()
        place = place._replace(surroundings=leave_files(surroundings))
        name_process("din zygote", "din zygote", place.processes)
        gc.collect()
        gc.freeze()
        try:
            Zygote(control, place).serve_forever()
        except OSError:
            return 0  # the agent has gone
    return 0
