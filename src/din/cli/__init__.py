"""The command line: `din`, and `din-cli` as the seeds call it."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Entry point of both names. Ends the process with an exit code of 0 to 8, or 130."""
    from din.cli.root import cli
    from din.cli.streams import open_streams

    open_streams()
    cli.main()
