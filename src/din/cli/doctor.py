"""`din doctor`: tests this machine, its network and its trust, with one command for each fault.

It reports only what it tried: a multicast test that heard nothing says so and lists what may be
behind it, it does not claim to know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Final

import click

from din.cli.check import Check, places
from din.cli.display import Column, show
from din.cli.doctor_disk import check_places
from din.cli.doctor_gateway import (
    check_gateway,
    check_insecure,
    check_listening,
    check_tls,
    gateway_place,
)
from din.cli.doctor_machine import (
    check_accelerators,
    check_backends,
    check_memory,
    check_multicast,
    check_python,
    check_sandbox,
    check_state,
    check_temperature,
)
from din.cli.doctor_node import check_admission
from din.cli.frame import Command, gateway_option, output_option, say, shout
from din.errors import DinError

EXIT_BAD: Final = 1
MACHINE: Final[tuple[Callable[[], Check], ...]] = (
    check_python,
    check_memory,
    check_backends,
    check_sandbox,
    check_accelerators,
    check_temperature,
    check_multicast,
)
COLUMNS: Final[tuple[Column[Check], ...]] = (
    Column("CHECK", lambda check: check.name),
    Column("STATE", lambda check: check.state),
    Column("SEEN", lambda check: check.seen),
)


@click.command("doctor", cls=Command, examples=("din doctor", "din doctor -o json"))
@gateway_option
@output_option
def doctor(gateway: str | None, output: str) -> None:
    """Test this machine, its network and who is let in. Exit code 1 when something is bad.

    Each fault comes with the one command that mends it or looks closer.
    """
    checks = run_checks(gateway)
    document = {"schema": "din.doctor/1", "items": [check._asdict() for check in checks]}
    show(output, json.dumps(document).encode(), checks, COLUMNS, lambda check: check.name)
    if output in ("table", "wide"):
        for check in checks:
            if check.fix:
                tell = shout if check.state == "bad" else say
                tell(f"{check.name}: {check.fix}")
    bad = [check.name for check in checks if check.state == "bad"]
    if bad:
        verb = "is" if len(bad) == 1 else "are"
        say(f"{len(bad)} of {len(checks)} checks {verb} bad: {', '.join(bad)}")
        raise click.exceptions.Exit(EXIT_BAD)


def run_checks(gateway: str | None) -> list[Check]:
    """All checks; none of them raises."""
    checks = [check() for check in MACHINE]
    try:
        checks.append(check_state())
        found = places(os.environ)
        place = gateway_place(found)
        checks.append(check_insecure(place, os.environ))
        checks.append(check_listening(place, os.environ))
        checks.append(check_tls(place, os.environ))
    except DinError as error:
        # Settings that cannot be read: where everything is, is not known then.
        return [*checks, Check("settings", "bad", error.message, "din config show")]
    checks += check_places(found)
    checks += check_admission(found)
    checks += check_gateway(gateway)
    return checks
