"""Where a zygote stands."""

from __future__ import annotations

import subprocess
import sys

STAND = """
import os, tempfile
from din.worker.zygote import leave_folder
tempfile.tempdir = "/nowhere"
leave_folder()
print(os.getcwd())
"""


def test_a_zygote_starts_where_no_temporary_folder_can_be_made() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STAND], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout.rstrip().endswith("/fdinfo")
