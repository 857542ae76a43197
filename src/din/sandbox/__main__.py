"""`python -m din.sandbox`: tries everything in a child of this process, and prints in JSON what was
reached."""

from __future__ import annotations

import json
import os
import sys

from din.errors import Unavailable
from din.sandbox.enter import confine, leave_files, leave_others


def main() -> int:
    """Print `{"level": 0 to 3, "reason": why it is not 3}`; the exit code."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps(_tried()).encode())  # a file may not be written any more
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        told = source.read().decode()
    os.wait()
    sys.stdout.write(f"{told or json.dumps({'level': 0, 'reason': 'it died of trying'})}\n")
    return 0


def _tried() -> dict[str, object]:
    found = leave_files(leave_others())
    try:
        level = confine(found, is_insecure=True)
    except (OSError, Unavailable) as error:
        return {"level": 0, "reason": str(error)}
    return {
        "level": level,
        "reason": found.reason or ("" if level == 3 else "no Landlock in this kernel"),
    }


if __name__ == "__main__":
    sys.exit(main())
