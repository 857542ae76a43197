"""Programs that `din up` and `din node start --detach` leave running: start, find again, stop.

A record names a process by its id, its start time and the boot it was started in. A process id
that was given to somebody else since then does not match, so a stranger is never signalled; a pidfd
closes the gap between the check and the signal.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from din.cli.sources import load_gateway, load_node
from din.client.credentials import KEY_VARIABLE
from din.config import GIVEN_VARIABLE, HANDOVER_VARIABLE, Config, GatewayConfig, encode_config
from din.domain.malformed import MALFORMED
from din.errors import Conflict, Denied, DinError, Internal, Unavailable, every_error
from din.system.privacy import make_private

GRACE_S: Final = 12.0
"""After SIGTERM: longer than a gateway takes to let its running requests end."""
KILL_S: Final = 5.0
TURN_S: Final = 90.0
"""Longer than a gateway and a node may take to start."""
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
LAST_WORDS_MAX: Final = 200
LOG_TAIL_BYTES: Final = 4096
RECORD_BYTES_MAX: Final = 65536


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One program that was left running."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks from boot to the process's start."""
    boot_id: str
    program: str
    """`gateway` or `node`."""
    name: str = ""
    url: str = ""
    log_path: str = ""
    log_bytes_before: int = 0
    """Size of the log when it was started: what stands before is an earlier program's."""


def run_folder(state_dir: str) -> Path:
    """Where the records of a state directory lie."""
    return Path(state_dir) / "run"


@contextmanager
def turn(state_dir: str, say: Callable[[str], None], wait_s: float = TURN_S) -> Generator[None]:
    """One command at a time starts or stops programs of a state directory: two at once would take
    each other's records for their own. Raises Conflict, Denied or Unavailable."""
    path = run_folder(state_dir) / "turn.lock"
    try:
        make_private(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _error_of_file(f"a program cannot be started below {state_dir}", error) from None
    try:
        _await_turn(descriptor, say, time.monotonic() + wait_s)
        yield
    finally:
        os.close(descriptor)


def _await_turn(descriptor: int, say: Callable[[str], None], give_up_s: float) -> None:
    has_said = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not has_said:
                say("another `din` starts or stops programs here; waiting for it")
            has_said = True
        else:
            return
        if not sleep_until(give_up_s):
            raise Conflict(
                "another `din` has been starting or stopping programs here for too long",
                hint="look for it with `ps`, or use another --state-dir",
            )


def _error_of_file(what: str, error: OSError) -> DinError:
    if isinstance(error, PermissionError):
        return Denied(
            f"{what}: {error.strerror}",
            hint="run it as the user who started DIN, or give another place with --state-dir",
        )
    return Unavailable(
        f"{what}: {error.strerror}",
        hint="give another place with --state-dir, or make this one usable",
    )


def start_ticks_of(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process started; None when there is none, or only its exit code is left."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses: fields count from its end.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def boot_id(proc: Path = Path("/proc")) -> str:
    """Identity of this boot; empty where the kernel tells none."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_running(record: Record) -> bool:
    """Whether the very process of the record still runs."""
    return record.boot_id == boot_id() and start_ticks_of(record.pid) == record.start_ticks


def read_record(path: Path) -> Record | None:
    """A record whose process still runs; what is stale or broken is taken away."""
    try:
        with path.open("rb") as file:
            record = msgspec.json.decode(file.read(RECORD_BYTES_MAX), type=Record)
    except FileNotFoundError:
        return None
    except MALFORMED:
        record = None
    except OSError as error:
        raise _error_of_file(f"{path} cannot be read", error) from None
    if record is not None and is_running(record):
        return record
    with suppress(OSError):
        path.unlink()
    return None


def records_in(state_dir: str) -> list[tuple[Path, Record]]:
    """All records of running programs, nodes first, so that they say goodbye to their gateway."""
    found: list[tuple[Path, Record]] = []
    for path in sorted(run_folder(state_dir).glob("*.json")):
        record = read_record(path)
        if record is not None:
            found.append((path, record))
    return sorted(found, key=lambda each: each[1].program == "gateway")


def launch(
    module: str, config: Config, *, name: str, url: str, state_dir: str, record_name: str
) -> tuple[Record, subprocess.Popen[bytes]]:
    """Start `python -m module` in its own session, with its log file and its record."""
    folder = run_folder(state_dir)
    log_path = Path(state_dir) / "log" / f"{record_name}.log"
    try:
        make_private(folder)
        make_private(log_path.parent)
        _turn_over(log_path)
        with log_path.open("ab") as log:
            log_bytes_before = log.tell()
            child = subprocess.Popen(
                program_command(module),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=program_environment(config, os.environ),
                start_new_session=True,
            )
        with _kept_only_if_recorded(child):
            record = Record(
                pid=child.pid,
                start_ticks=start_ticks_of(child.pid) or 0,
                boot_id=boot_id(),
                program="gateway" if module.endswith("gateway") else "node",
                name=name,
                url=url,
                log_path=str(log_path),
                log_bytes_before=log_bytes_before,
            )
            write_record(folder / f"{record_name}.json", record)
    except OSError as error:
        raise Unavailable(
            f"the {record_name} cannot be started below {state_dir}: {error.strerror}",
            hint="give another place with --state-dir, or make this one writable",
        ) from None
    return record, child


@contextmanager
def _kept_only_if_recorded(child: subprocess.Popen[bytes]) -> Generator[None]:
    """A program without a record, on a full disk or after Ctrl-C, could not be found again."""
    try:
        yield
    except BaseException:
        child.kill()
        child.wait()
        raise


def leave(child: subprocess.Popen[bytes]) -> None:
    """Let a started program outlive us; without this Python complains that nobody waited for it."""
    child.returncode = 0


def write_record(path: Path, record: Record) -> None:
    """Replace a record as a whole."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(record))
    fresh.replace(path)


def program_command(module: str) -> list[str]:
    """How a program of DIN is started."""
    return [sys.executable, "-P", "-m", module]


def program_environment(config: Config, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program: ours, with its settings in it and without our API key."""
    kept = {name: text for name, text in environment.items() if name != KEY_VARIABLE}
    load = load_gateway if isinstance(config, GatewayConfig) else load_node
    return {
        **kept,
        HANDOVER_VARIABLE: encode_config(config),
        GIVEN_VARIABLE: _given_json(config, load({}, environment)),
        "ORT_DISABLE_TELEMETRY": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _given_json(config: Config, base: Config) -> str:
    """What `config` has of its own above `base`, which files and variables alone would make."""
    return msgspec.json.encode(
        {
            name: getattr(config, name)
            for name in config.__struct_fields__
            if getattr(config, name) != getattr(base, name)
        }
    ).decode()


def _turn_over(log_path: Path) -> None:
    """Keep one older log when this one has grown large."""
    if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
        log_path.replace(log_path.with_suffix(".log.1"))


def log_tail(record: Record) -> list[str]:
    """The last lines that this very program wrote to its log."""
    try:
        with Path(record.log_path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(record.log_bytes_before, size - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def error_of_exit(record: Record, exit_code: int) -> DinError:
    """What a program that ended while starting had to say: the error of its log and exit code."""
    lines = log_tail(record)
    told = [each.removeprefix("error: ") for each in lines if each.startswith("error: ")]
    hints = [each.removeprefix("hint: ") for each in lines if each.startswith("hint: ")]
    message = told[-1] if told else f"it ended with code {exit_code}{_last_words(lines)}"
    kinds = [each for each in every_error() if each.exit_code == exit_code]
    kind = kinds[0] if kinds else Internal
    hint = hints[-1] if told and hints else f"its log is {record.log_path}"
    return kind(f"the {record.program} did not start: {message}", hint=hint)


def _last_words(lines: Sequence[str]) -> str:
    words = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; the last it wrote: {words[:LAST_WORDS_MAX]}" if words else ""


def stop(path: Path, record: Record, grace_s: float = GRACE_S) -> bool:
    """End the process of a record, gently and then not. Answers whether it went gently."""
    try:
        pidfd = os.pidfd_open(record.pid)
    except OSError:
        path.unlink(missing_ok=True)
        return True
    try:
        if not is_running(record):
            path.unlink(missing_ok=True)
            return True
        is_gentle = _end(pidfd, signal.SIGTERM, grace_s)
        if not is_gentle and not _end(pidfd, signal.SIGKILL, KILL_S):
            raise Unavailable(
                f"process {record.pid} ({record.program} {record.name}) does not end",
                hint="it is stuck in the kernel; see dmesg",
            )
    except PermissionError:
        raise Denied(
            f"process {record.pid} belongs to another user",
            hint="run it as the user who started it",
        ) from None
    finally:
        os.close(pidfd)
    path.unlink(missing_ok=True)
    return is_gentle


def _end(pidfd: int, number: signal.Signals, wait_s: float) -> bool:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)
    readable, _, _ = select.select([pidfd], [], [], wait_s)
    return bool(readable)


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Raise Conflict when another program listens there, Denied or Unavailable when nobody may."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            raise Denied(
                f"port {port} on {host} needs more rights", hint="use a port above 1023"
            ) from None
        except OSError as error:
            raise _bind_error(host, port, option, error) from None


def _bind_error(host: str, port: int, option: str, error: OSError) -> DinError:
    import errno

    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} on {host} is in use by another program",
            hint=f"choose another with {option}, or see who has it: ss -ltnp 'sport = :{port}'",
        )
    return Unavailable(
        f"cannot listen on {host}:{port}: {error.strerror}",
        hint="--host is an address of this machine",
    )


def sleep_until(moment_s: float, step_s: float = 0.05) -> bool:
    """Wait one step; False once the moment has passed."""
    time.sleep(step_s)
    return time.monotonic() < moment_s
