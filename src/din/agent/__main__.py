"""`python -m din.agent`: the agent, with its settings as JSON in DIN_CONFIG_JSON."""

from __future__ import annotations

import os
import sys
from typing import Final

_ONE_ARENA: Final = "MALLOC_ARENA_MAX"


def main() -> int:
    """Settings from the environment, then the agent; the exit code."""
    if _ONE_ARENA not in os.environ:
        # Read by the C library before any code of ours runs: start again, under the same pid.
        os.environ[_ONE_ARENA] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    # 300 KiB of an idle agent, that msgspec imports where it is and has no use for on this Python.
    sys.modules.setdefault("typing_extensions", None)  # pyright: ignore[reportArgumentType]
    from din.agent.serving import run_agent
    from din.config import NodeConfig, received_config
    from din.errors import DinError

    try:
        config = received_config(NodeConfig, os.environ)
    except DinError as error:
        sys.stderr.write(f"error: {error.story()}\n")
        return error.exit_code
    return run_agent(config)


if __name__ == "__main__":
    sys.exit(main())
