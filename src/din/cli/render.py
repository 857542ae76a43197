"""`python -m din.cli.render gateway|node`: settings as they are now, for a program that reads its
own again and knows neither YAML nor variables. What it was given by flags stands above all else."""

from __future__ import annotations

import os
import sys
from typing import Final, cast

import msgspec

from din.cli.options import gateway_settings, node_settings
from din.config import GIVEN_VARIABLE, Config, encode_config
from din.domain.malformed import MALFORMED
from din.errors import DinError, UsageError

PROGRAMS: Final = ("gateway", "node")


def main(arguments: list[str]) -> int:
    """Print the settings as JSON; the exit code of the error tree."""
    try:
        sys.stdout.write(encode_config(_settings(arguments)))
    except DinError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return error.exit_code
    return 0


def _settings(arguments: list[str]) -> Config:
    if len(arguments) != 1 or arguments[0] not in PROGRAMS:
        raise UsageError(f"{arguments} is none of {PROGRAMS}", hint="python -m din.cli.render node")
    try:
        given: object = msgspec.json.decode(os.environ.get(GIVEN_VARIABLE, "{}"))
    except MALFORMED as error:
        raise UsageError(f"{GIVEN_VARIABLE} is broken: {error}", hint="start it again") from None
    flags = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    return gateway_settings(flags) if arguments[0] == "gateway" else node_settings(flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
