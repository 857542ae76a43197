"""Commands whose parent closed the standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_command_without_standard_streams_ends_as_usual(tmp_path: Path) -> None:
    def close_all() -> None:
        for number in range(3):
            os.close(number)

    done = subprocess.run(
        [str(Path(sys.executable).with_name("din")), "node", "list", "--gateway", "http://[::1]:1"],
        preexec_fn=close_all,
        env={**os.environ, "HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 4
