"""`python -m din.bench.floor MODEL`: ONNX Runtime called in a loop, what any server needs at least.

Stays loaded, so that a window of it can be taken right before each window of a server. Each line on
standard input asks for `threads seconds`; each answer is one line of JSON.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Struct

from din.bench.models import example_of, session_of
from din.bench.row import percentile
from din.errors import Unavailable

WARM_RUNS = 20


class Floored(Struct, frozen=True, kw_only=True):
    """One window."""

    p50_ms: float
    rate: float
    """Calls a second, all threads together."""
    cpu_us: float
    """CPU time of a call."""


class Floor:
    """The process, as its starter sees it."""

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "din.bench.floor", str(model)],
            env={**os.environ, "ORT_DISABLE_TELEMETRY": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Floor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def window(self, threads: int, seconds: float) -> Floored:
        """Raises Unavailable when the process died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{threads} {seconds}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Unavailable("the in-process ONNX Runtime ended") from None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable("the in-process ONNX Runtime ended")
        return msgspec.json.decode(line, type=Floored)


class _Caller(threading.Thread):
    def __init__(self, session: Any, example: Any, end_ns: int) -> None:
        super().__init__()
        self._session = session
        self._feeds = {session.get_inputs()[0].name: example}
        self._end_ns = end_ns
        self.times_ns: list[int] = []

    def run(self) -> None:
        """Call until the end of the window."""
        while (started := perf_counter_ns()) < self._end_ns:
            self._session.run(None, self._feeds)
            self.times_ns.append(perf_counter_ns() - started)


def main(path: Path) -> None:
    """Serve windows until standard input ends."""
    sessions = [session_of(path) for _ in range(2)]
    example = example_of(sessions[0])
    for session in sessions:
        for _ in range(WARM_RUNS):
            session.run(None, {session.get_inputs()[0].name: example})
    for line in sys.stdin:
        threads, seconds = line.split()
        answer = _window(sessions[: int(threads)], example, float(seconds))
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        sys.stdout.flush()


def _window(sessions: list[Any], example: Any, seconds: float) -> Floored:
    began_ns, cpu_ns = perf_counter_ns(), process_time_ns()
    callers = [_Caller(each, example, began_ns + int(seconds * 1e9)) for each in sessions]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    times_ns = [each for caller in callers for each in caller.times_ns]
    return Floored(
        p50_ms=percentile(times_ns, 0.5) / 1e6,
        rate=len(times_ns) * 1e9 / (perf_counter_ns() - began_ns),
        cpu_us=(process_time_ns() - cpu_ns) / 1000 / len(times_ns),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
