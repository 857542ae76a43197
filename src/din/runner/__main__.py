"""`python -m din.runner`: keeps one server for the agent, or tries whether a runtime works here."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import sys
from typing import Final

import msgspec

from din.domain.malformed import MALFORMED
from din.errors import DinError, Internal
from din.runner.keeper import Keeper
from din.runner.trial import try_runtime
from din.system.descriptors import close_all, receive_message
from din.wire.runner import MESSAGE_BYTES_MAX, Keep

MEMORY_BYTES_MAX: Final = 512 * 1024 * 1024
"""A layer's headers must not fill the machine."""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m din.runner", description=__doc__)
    parser.add_argument("--control-fd", type=int)
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--try", dest="tried", choices=("runc", "crun"))
    given = parser.parse_args()
    if given.tried:
        return _try(given.tried)
    if given.control_fd is None:
        parser.error("one of --control-fd and --try is needed")
    # Its end is the agent's business: a group that is told to stop has to leave the cleaning to us.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=given.control_fd) as control:
        control.setblocking(True)
        try:
            data, descriptors = receive_message(control, MESSAGE_BYTES_MAX)
            close_all(descriptors)
            if not data:
                return 0
            order = msgspec.json.decode(data, type=Keep)
        except (Internal, *MALFORMED) as error:
            sys.stderr.write(f"the order cannot be read: {error!s:.200}\n")
            return 1
        try:
            Keeper(order, control).run()
        except (DinError, OSError, MemoryError) as error:
            told = error.message if isinstance(error, DinError) else f"{error!s:.300}"
            sys.stderr.write(f"container {order.container_id}: {told}\n")
            return 1
    return 0


def _try(runner: str) -> int:
    try:
        seen = try_runtime("crun" if runner == "crun" else "runc")
    except DinError as error:
        sys.stderr.write(f"{error.story()}\n")
        return 1
    sys.stdout.write(f"{seen}\n")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    sys.exit(main())
