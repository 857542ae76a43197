"""Keeps one server running in one container.

    preparing --unpacked, started--> running --ended--> failed --after a while--> preparing

Whatever goes wrong is told, and tried again after a growing while: an operator may have mended the
image meanwhile. The agent's end of the socket closing ends everything, also when the agent was
killed; what a killed keeper left is removed by the next one.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from din.errors import DinError, Unavailable, UsageError
from din.flow.backoff import Backoff
from din.runner.bundle import bundle_of
from din.runner.image import Image, read_image
from din.runner.layers import Unpacking
from din.runner.lines import Lines
from din.runner.runtime import Runtime, device_of, part_mounts, this_host
from din.system.descriptors import send_message
from din.system.privacy import plain_environment
from din.wire.runner import Keep, Standing, Told

BACKOFF: Final = Backoff(base_ms=1000, cap_ms=60_000)
WELL_AFTER_S: Final = 60.0
"""A server that ran so long failed by something new: waiting begins small again."""
PID_S_MAX: Final = 30.0
STOP_S: Final = 5.0
"""Between SIGTERM and SIGKILL."""
LOCK_S_MAX: Final = 30.0
TICK_S: Final = 0.1


class Stopped(Exception):
    """The agent wants no more, or is gone."""


class Keeper:
    """One container. One thread."""

    def __init__(self, order: Keep, control: socket.socket) -> None:
        self._order = order
        self._control = control
        self._control.setblocking(False)
        self._folder = Path(order.folder)
        self._lines = Lines()
        self._random = Random()
        self._runtime: Runtime | None = None
        self._listener: socket.socket | None = None
        self._restarts = -1
        self._failures = 0
        self._unsent: Standing | None = None

    def run(self) -> None:
        """Until the agent closes its end. Raises OSError when the folder cannot be used."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        is_parted = False
        try:
            self._claim(lock)
            while True:
                try:
                    if not is_parted:
                        part_mounts(self._order.runner)
                        is_parted = True
                    self._live_once()
                except DinError as error:
                    self._fail(error)
                except OSError as error:
                    self._fail(Unavailable(f"the container cannot be kept: {error}"))
        except Stopped:
            self._clean()
        finally:
            os.close(lock)

    # One life of the container.

    def _live_once(self) -> None:
        self._restarts += 1
        self._tell("preparing")
        self._runtime = Runtime(self._order.runner, self._folder / "notes")
        self._clean()
        bundle = self._prepare()
        if self._listener is None:
            self._listener = self._bind()
        pid_file = self._folder / "pid"
        pid_file.unlink(missing_ok=True)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writing, True)
        try:
            process = self._runtime.start(bundle, self._order.container_id, pid_file, writing)
        except Unavailable:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        forwarder: subprocess.Popen[bytes] | None = None
        began_s = time.monotonic()
        try:
            pid = self._wait_for_pid(process, pid_file, reading)
            forwarder = self._forward(pid)
            self._tell("running", pid=pid)
            self._watch(process, forwarder, reading)
        except Stopped:
            self._stop(process, reading)
            raise
        finally:
            if forwarder is not None:
                forwarder.kill()
                forwarder.wait()
            self._clean()
            _end(process)
            os.close(reading)
        if time.monotonic() - began_s > WELL_AFTER_S:
            self._failures = 0
        raise Unavailable(f"it ended with {_words_of(process.returncode)}{self._lines.last()}")

    def _prepare(self) -> Path:
        """The bundle's folder, with the image unpacked unless it is already."""
        order, setting = self._order, self._order.setting
        image = read_image(Path(setting.image), setting.digest, self._look)
        for source in setting.mounts:
            if not Path(source).exists():
                raise UsageError(f"{source} is to be mounted and is not there")
        host = this_host()
        root = self._unpacked(image) if image.digest else image.folder
        document = bundle_of(
            setting,
            image.config,
            str(root.resolve()),
            order.container_id,
            host,
            [device_of(each) for each in order.devices],
        )
        bundle = self._folder / "bundle"
        bundle.mkdir(mode=0o700, exist_ok=True)
        (bundle / "config.json").write_bytes(msgspec.json.encode(document))
        return bundle

    def _unpacked(self, image: Image) -> Path:
        images = self._folder / "images"
        whole = images / image.digest.removeprefix("sha256:")
        if whole.is_dir():
            return whole
        shutil.rmtree(images, ignore_errors=True)  # other versions, and what was begun
        images.mkdir(mode=0o700)
        part = images / "part"
        Unpacking(part, self._look).unpack(image)
        return part.rename(whole)

    def _bind(self) -> socket.socket:
        host, port = self._order.host, self._order.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=64)
        except OSError as error:
            raise Unavailable(
                f"port {port} of {host} cannot be listened on: {error.strerror}",
                hint="another program has it (ss -ltnp); stop that, or change the server's url",
            ) from error

    def _wait_for_pid(self, process: subprocess.Popen[bytes], pid_file: Path, reading: int) -> int:
        end_s = time.monotonic() + PID_S_MAX
        while time.monotonic() < end_s:
            self._look()
            ended = process.poll()
            self._lines.read(reading)
            with suppress(OSError, ValueError):
                return int(pid_file.read_text())
            if ended is not None:
                raise Unavailable(f"{self._order.runner} did not start it{self._lines.last()}")
            time.sleep(0.02)
        raise Unavailable(f"{self._order.runner} did not start it within {PID_S_MAX:g} s")

    def _forward(self, pid: int) -> subprocess.Popen[bytes]:
        assert self._listener is not None
        descriptor = self._listener.fileno()
        port = self._order.setting.port or self._order.port
        command = [
            *(sys.executable, "-P", "-m", "din.runner.forward"),
            *("--listen-fd", str(descriptor), "--parent-pid", str(os.getpid())),
            *("--pid", str(pid), "--port", str(port)),
        ]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=plain_environment(os.environ),
            pass_fds=(descriptor,),
        )

    def _watch(
        self, process: subprocess.Popen[bytes], forwarder: subprocess.Popen[bytes], reading: int
    ) -> None:
        """Until the container or its forwarder ends."""
        with selectors.DefaultSelector() as selector:
            for pid in (process.pid, forwarder.pid):
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, "end")
            selector.register(reading, selectors.EVENT_READ, "log")
            selector.register(self._control, selectors.EVENT_READ, "control")
            is_ended = False
            try:
                while not is_ended:
                    found = selector.select(1.0)
                    self._look()
                    for key, _ in found:
                        is_ended |= key.data == "end"
                        if key.data == "log" and not self._lines.read(reading):
                            selector.unregister(reading)  # closed by all who had it
            finally:
                for key in list(selector.get_map().values()):
                    if key.data == "end":
                        os.close(key.fd)
        self._lines.read(reading)
        self._send_lines()
        if process.poll() is None and forwarder.poll() is not None:
            raise Unavailable("what carries its connections ended")

    def _stop(self, process: subprocess.Popen[bytes], reading: int) -> None:
        assert self._runtime is not None
        self._runtime.kill(self._order.container_id, signal.SIGTERM)
        end_s = time.monotonic() + STOP_S
        while process.poll() is None and time.monotonic() < end_s:
            self._lines.read(reading)
            time.sleep(0.05)

    def _clean(self) -> None:
        """No container of this id is left after it. Raises Unavailable."""
        if self._runtime is not None and (self._folder / "notes").is_dir():
            left = self._runtime.remove(self._order.container_id)
            if left:
                raise Unavailable(f"a container that is left over cannot be removed: {left}")

    # Telling, waiting and being told to stop.

    def _claim(self, lock: int) -> None:
        """Another keeper of the same container may be stopping it still."""
        end_s = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._look()
                if time.monotonic() > end_s:
                    end_s = time.monotonic() + LOCK_S_MAX
                    self._tell("failed", f"another program keeps {self._folder}")
                time.sleep(TICK_S)
            else:
                return

    def _fail(self, error: DinError) -> None:
        delay_s = BACKOFF.delay_ms(self._failures, self._random) / 1000
        self._failures += 1
        hint = f" ({error.hint})" if error.hint else ""
        self._tell("failed", f"{error.message}{hint}; tried again in {delay_s:.0f} s")
        end_s = time.monotonic() + delay_s
        while (left_s := end_s - time.monotonic()) > 0:
            self._look()
            time.sleep(min(TICK_S, left_s))

    def _look(self) -> None:
        """Raises Stopped when the agent is gone; sends what could not be sent before."""
        with suppress(BlockingIOError, InterruptedError):
            if not self._control.recv(1):
                raise Stopped
        if self._unsent is not None and self._send(self._unsent):
            self._unsent = None
        self._send_lines()

    def _tell(self, state: str, reason: str = "", pid: int = 0) -> None:
        version = self._runtime.version if self._runtime is not None else ""
        self._unsent = msgspec.convert(
            {
                "kind": "standing", "state": state, "reason": reason[:2000], "pid": pid,
                "runtime": f"{self._order.runner} {version}".strip(),
                "restarts": max(self._restarts, 0),
            },
            Standing,
        )  # fmt: skip
        self._look()

    def _send_lines(self) -> None:
        said = self._lines.due(time.monotonic())
        if said is not None and not self._send(said):
            self._lines.give_back(said)

    def _send(self, message: Told) -> bool:
        try:
            send_message(self._control, msgspec.json.encode(message))
        except BlockingIOError:
            return False
        except OSError as error:
            raise Stopped from error
        return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Of a runtime whose container is gone already."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _words_of(code: int | None) -> str:
    """Of the runtime, which passes the server's end on: 128 and the signal's number."""
    number = (code or 0) - 128 if (code or 0) > 128 else -(code or 0)
    with suppress(ValueError):
        if number > 0:
            return signal.Signals(number).name
    return f"exit code {code}"
