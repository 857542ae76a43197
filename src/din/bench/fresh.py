"""Loading as a worker does it: in a process that was just forked, so that memory is fresh."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from time import process_time
from typing import Final

import msgspec
from msgspec import Struct

from din.bench.models import SESSION
from din.errors import Unavailable
from din.worker.load import read_whole

ANSWER_BYTES_MAX: Final = 256
STATUS: Final = Path("/proc/self/status")


class Load(Struct, frozen=True):
    """What one load took."""

    cpu_s: float
    peak_mib: float
    """The highest resident set while it loaded, over the one before."""


def load_afresh(descriptor: int) -> Load:
    """Load the model in a fork of this process; the descriptor stays ours. Raises Unavailable."""
    # The library starts a thread otherwise, and is loaded before the fork, as by a zygote.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from din.backends import onnxruntime_backend

    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before_mib, started = _peak_mib(), process_time()
            session = onnxruntime_backend.load(read_whole(descriptor), SESSION)
            found = Load(process_time() - started, _peak_mib() - before_mib)
            os.write(theirs, msgspec.json.encode(found))
            del session  # what freeing it takes is not counted
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        answer = os.read(ours, ANSWER_BYTES_MAX)
    finally:
        os.close(ours)
        os.waitpid(child, 0)
    if not answer:
        raise Unavailable(
            "the process that loads a model ended before it told what that took", hint="see above"
        )
    return msgspec.json.decode(answer, type=Load)


def _peak_mib() -> float:
    for line in STATUS.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "VmHWM":
            return int(value.split()[0]) / 1024
    raise Unavailable(f"{STATUS} does not name the highest resident set (VmHWM)")
