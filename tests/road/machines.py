"""Machines for tests: a network namespace, a host name and a home of their own each.

Every command of a machine sees its own folder at the same path, as two installations do, and not
the other machine's: Unix sockets and state directories are not shared. Needs root, as islands do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

HOME: Final = "/mnt"
"""Of every machine; mounted for its processes only."""
LOG_CHARACTERS: Final = 8000
_ENTER: Final = 'mount --bind "$1" "$2"; hostname "$3"; cd "$2"; exec sh -c "$4"'
_SEPARATE: Final = ("unshare", "--mount", "--uts", "--propagation", "private")


class Machine:
    """Where commands are typed as in a shell."""

    def __init__(self, name: str, network: list[str], folder: Path) -> None:
        """`network` are the words that enter its network namespace. Skips where the kernel does not
        allow this."""
        self.name = name
        self.folder = folder
        self._words = [*network, *_SEPARATE, "sh", "-ec", _ENTER, "machine",
                       str(folder), HOME, name]  # fmt: skip
        folder.mkdir(mode=0o700)
        tried = self.type("hostname")
        if tried.returncode:
            pytest.skip(f"no machine of its own here: {tried.stderr.strip()}")
        assert tried.stdout.strip() == name

    def type(
        self, line: str, given: str = "", seconds: float = 90
    ) -> subprocess.CompletedProcess[str]:
        """A command line, with `given` on its standard input."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            [*self._words, line],
            env={"PATH": path, "HOME": HOME, "COLUMNS": "200", "LANG": "C.UTF-8"},
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def must(self, line: str, given: str = "") -> str:
        """Standard output of a command that succeeds."""
        done = self.type(line, given)
        assert done.returncode == 0, f"{self.name}: {line}\n{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def logs(self) -> str:
        found = sorted((self.folder / ".local").rglob("*.log"))
        return "".join(f"-- {each}\n{each.read_text()[-LOG_CHARACTERS:]}" for each in found)

    def open_ports(self) -> set[tuple[str, int]]:
        """(`tcp` or `udp`, port) that others in the network may come to."""
        found: set[tuple[str, int]] = set()
        for line in self.must("ss -Hltun").splitlines():
            kind, _, _, _, local = line.split()[:5]
            host, _, port = local.rpartition(":")
            if not host.startswith(("127.", "[::1]")):
                found.add((kind, int(port)))
        return found
