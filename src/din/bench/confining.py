"""`python -m din.bench.confining COUNT`: how long it takes to give everything up, in microseconds.

A program of its own: who tries it has given up, for good, what a benchmark needs.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter_ns

from din.sandbox.enter import confine, leave_files, leave_others


def main(count: int) -> int:
    """Print `{"zygote": microseconds once, "workers": [microseconds, ...]}`; the exit code."""
    started = perf_counter_ns()
    found = leave_files(leave_others())
    once_us = (perf_counter_ns() - started) / 1000
    workers_us: list[float] = []
    for _ in range(count):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            started = perf_counter_ns()
            confine(found)
            os.write(writing, str((perf_counter_ns() - started) / 1000).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as source:
            told = source.read()
        os.waitpid(pid, 0)
        if told:
            workers_us.append(float(told))
    sys.stdout.write(json.dumps({"zygote": once_us, "workers": workers_us}))
    return 0 if len(workers_us) == count else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
