"""Standard streams that a parent closed: opened again, onto nothing."""

from __future__ import annotations

import os
import sys


def open_streams() -> None:
    """Have descriptors 0 to 2, here and in the programs that this one becomes: else the next
    socket gets number 2, and what a library complains about is sent to a peer."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(_nowhere(), number)
    # They live as long as the process.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _nowhere() -> int:
    # The lowest free number is mostly the one that is missing; dup2 onto itself does nothing then
    # but leave it closed on exec, so it is made inheritable by hand.
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    return descriptor
