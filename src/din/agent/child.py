"""Programs that the agent starts and talks to over a socket of their own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from typing import Final

from din.errors import Unavailable
from din.system.descriptors import control_pair
from din.system.privacy import engine_environment, plain_environment

LOOK_S: Final = 0.02


def start_child(
    module: str, words: tuple[str, ...] = (), *, runs_engines: bool = False
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """`python -m MODULE`, told its end of a control socket and who its parent is; the process and
    our end, which does not block. Raises Unavailable."""
    try:
        ours, theirs = control_pair()
    except OSError as error:
        raise _not_started(module, error) from error
    command = [
        *(sys.executable, "-P", "-m", module),
        *("--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())),
        *words,
    ]
    try:
        # A session of its own: a Ctrl-C in the terminal is the agent's business alone.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=(engine_environment if runs_engines else plain_environment)(os.environ),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise _not_started(module, error) from error
    finally:
        theirs.close()
    ours.setblocking(False)
    return process, ours


async def end_child(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for a child whose socket was closed; one that stays is killed."""
    for _ in range(int(patience_s / LOOK_S)):
        if process.poll() is not None:
            return
        await asyncio.sleep(LOOK_S)
    process.kill()
    process.wait()


def _not_started(module: str, error: OSError) -> Unavailable:
    return Unavailable(f"{module} cannot be started: {error.strerror}", hint="see `din doctor`")
