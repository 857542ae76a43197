"""`python -m din.backends NAME`: import one engine, try it, print what it says as a line of JSON.

Started in a process of its own: whatever the library does to it, it does to nobody else.
"""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from din.backends.asking import QUIET
from din.backends.registry import BACKENDS, MAKERS, entry_of, how_to_get, import_backend
from din.domain.engine import EngineFacts, bounded
from din.errors import DinError


def main() -> int:
    """Ask one engine."""
    parser = argparse.ArgumentParser(prog="python -m din.backends", allow_abbrev=False)
    parser.add_argument("backend", choices=sorted((*BACKENDS, *MAKERS)))
    name = parser.parse_args().backend
    os.environ |= QUIET
    sys.stdout.write(msgspec.json.encode(_facts(name)).decode() + "\n")
    return 0


def _facts(name: str) -> EngineFacts:
    if name in MAKERS:
        from din.backends.makers import facts_of

        return facts_of(name)
    entry = entry_of(name)
    try:
        backend = import_backend(name)
        facts = backend.describe()
        if facts.is_usable and entry.takes == "ONNX":
            from din.backends.trial import try_engine

            try_engine(backend)
    except DinError as error:
        return EngineFacts(backend=name, trouble=bounded(error.message), hint=error.hint)
    except Exception as error:  # a library may raise anything as it is asked
        words = f"{type(error).__name__}: {error}"
        return EngineFacts(backend=name, trouble=bounded(words), hint=how_to_get(entry))
    return facts


if __name__ == "__main__":
    sys.exit(main())
