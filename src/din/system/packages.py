"""Which Python packages are installed, by the names of their folders.

`importlib.metadata` would do, but it brings the e-mail parser with it: 1.5 MiB that an idle agent
of 30 MiB does not have.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_FOLDER = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.dist-info")


def installed_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Version of each of these packages that is installed; the first on the path counts."""
    wanted = {_normal(name): name for name in names}
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = [each.name for each in Path(folder or ".").iterdir()]
        except OSError:
            continue
        for entry in entries:
            match = _FOLDER.fullmatch(entry)
            name = wanted.get(_normal(match["name"])) if match else None
            if match and name is not None:
                found.setdefault(name, match["version"])
    return found


def _normal(name: str) -> str:
    """The form in which package names are equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
