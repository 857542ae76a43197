"""Programs of this machine, by name. `shutil.which` would do, but it brings every kind of archive
with it: half a MiB that an idle agent does not have."""

from __future__ import annotations

import os


def find_tool(name: str) -> str | None:
    """Whole path of the first program of this name in PATH; None = there is none."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", name)  # noqa: PTH118 (a text is wanted)
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return path
    return None
