"""`python -m din.worker --control-fd N --parent-pid P`: the zygote. Started by the agent only."""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    """Set the environment that keeps libraries from starting threads, then be the zygote."""
    parser = argparse.ArgumentParser(prog="python -m din.worker", allow_abbrev=False)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, default=os.getppid())
    parser.add_argument(
        "--insecure", action="store_true", help="run workers where nothing confines them"
    )
    parser.add_argument(
        "--engine", action="append", default=[], help="import this engine; else what nodes need"
    )
    parser.add_argument("--probe", action="store_true", help="with --engine: probes as well")
    parser.add_argument(
        "--foreign", action="store_true", help="its workers are clients of servers of others"
    )
    options = parser.parse_args()
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    from din.worker.zygote import Imports, run_zygote

    imports = Imports(tuple(options.engine), with_probe=options.probe, is_foreign=options.foreign)
    return run_zygote(
        options.control_fd, options.parent_pid, is_insecure=options.insecure, imports=imports
    )


if __name__ == "__main__":
    sys.exit(main())
