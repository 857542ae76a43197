"""Workers that ended, as `inspect` shows them."""

from __future__ import annotations

from collections.abc import Iterable

from din.domain.crash import CrashView


def crash_lines(crashes: Iterable[CrashView]) -> str:
    """One line each, the newest first; nothing where there were none."""
    return "\n".join(reversed([_line(each) for each in crashes]))


def _line(crash: CrashView) -> str:
    peak = f", at most {crash.memory_mib_peak} MiB" if crash.memory_mib_peak is not None else ""
    running = f", while it computed {crash.running}" if crash.running else ""
    return f"{crash.at} {crash.slice} on {crash.node}: {crash.reason}{peak}{running}"
