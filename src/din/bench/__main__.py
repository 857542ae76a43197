"""`python -m din.bench list` and `python -m din.bench run NAME... [-o json|table]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from din.bench.run import BENCHMARKS, groups, is_complete, run
from din.bench.show import as_json, as_line, header
from din.errors import DinError


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything could be measured, 1 when not, 2 for wrong usage."""
    words = _parser().parse_args(arguments)
    if words.verb == "list":
        for group, names in groups().items():
            print(group)
            for name in names:
                print(f"  {name:14} {BENCHMARKS[name].about}")
        return 0
    is_table = words.output == "table"
    if is_table:
        print(header(), flush=True)
    try:
        rows = run(words.names, lambda row: print(as_line(row), flush=True) if is_table else None)
    except DinError as error:
        sys.stderr.write(f"error: {error.story()}\n")
        return error.exit_code
    if not is_table:
        print(as_json(rows))
    return 0 if is_complete(rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="din bench", description="Measure DIN on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="what can be measured")
    runner = verbs.add_parser("run", help="measure groups or single benchmarks")
    runner.add_argument("names", nargs="+", metavar="NAME")
    runner.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
