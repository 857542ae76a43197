"""The child's main: answers orders until its socket closes. Gives up core files first."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import Final

import msgspec

from din.errors import DinError, Internal
from din.system.descriptors import close_all, receive_message, send_message
from din.unseal.opening import Trusted, trusted_in, unseal
from din.wire.unseal import MESSAGE_BYTES_MAX, Unseal, Unsealed, UnsealFailed
from din.worker.confine import die_with_parent, keep_private, name_process

_ORDERS: Final = msgspec.json.Decoder(Unseal)


def main() -> int:
    """Serve one burst; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m din.unseal", description=__doc__)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--trust", type=Path, required=True, help="the node's trust folder")
    given = parser.parse_args()
    die_with_parent(given.parent_pid)
    keep_private()
    name_process("din unseal", "din unseal")
    with socket.socket(fileno=given.control_fd) as control:
        control.setblocking(True)
        try:
            while _answer_one(control, given.trust):
                pass
        except OSError:
            return 0  # the agent has gone
    return 0


def _answer_one(control: socket.socket, folder: Path) -> bool:
    data, descriptors = receive_message(control, MESSAGE_BYTES_MAX)
    close_all(descriptors)
    if not data:
        return False
    order = _ORDERS.decode(data)
    try:
        descriptor = _unseal(order, folder)
    except DinError as error:
        failed = UnsealFailed(
            ticket=order.ticket, code=error.code, message=error.message, hint=error.hint
        )
        send_message(control, msgspec.json.encode(failed))
        return True
    given = [descriptor] if descriptor >= 0 else []
    try:
        send_message(control, msgspec.json.encode(Unsealed(ticket=order.ticket)), given)
    finally:
        close_all(given)
    return True


def _unseal(order: Unseal, folder: Path) -> int:
    try:
        # Read anew for each order: a node may have joined again meanwhile.
        trusted: Trusted = trusted_in(folder)
        return unseal(order, trusted)
    except (MemoryError, OverflowError, ValueError, RuntimeError) as error:
        # The words of such an error might hold what must not be told.
        raise Internal(f"the slice could not be opened: {type(error).__name__}") from None


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
