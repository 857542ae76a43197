"""`din doctor`: tests this machine, its network and its trust, with one command for each fault.

It reports only what it tried: a multicast test that heard nothing says so and lists what may be
behind it, it does not claim to know. It changes nothing. Rows are made all at once, each within a
time of its own (`doctor_rows`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click

from din.cli.check import Check, places
from din.cli.display import Column, show
from din.cli.doctor_disk import check_disks, check_places
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
    check_makers,
    check_memory,
    check_runner,
    check_sandbox,
    check_services,
    check_temperature,
)
from din.cli.doctor_network import (
    check_announcements,
    check_multicast,
    check_ports,
    check_unicast,
)
from din.cli.doctor_node import check_admission
from din.cli.doctor_rows import Row, looked_at
from din.cli.doctor_versions import check_own_clock, check_python, check_versions
from din.cli.frame import Command, gateway_option, output_option, say, shout
from din.cli.sources import SYSTEM_FILE, collect, load_gateway, load_node, user_file
from din.errors import DinError

EXIT_FAILED: Final = 1
MACHINE: Final[tuple[Row, ...]] = (
    Row("python", check_python),
    Row("versions", check_versions),
    Row("memory", check_memory),
    Row("backends", check_backends),
    Row("engines of makers", check_makers, 60.0),
    Row("sandbox", check_sandbox, 25.0, "fail", "python -m din.sandbox"),
    Row("runner", check_runner, 25.0),
    Row("accelerators", check_accelerators),
    Row("temperature", check_temperature),
    Row("own clock", check_own_clock),
    Row("services", check_services),
    Row("multicast", check_multicast),
    Row("announcements", check_announcements, 8.0),
    Row("unicast", check_unicast),
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
    """Test this machine, its network and who is let in. Exit code 1 when a check fails.

    Each fault comes with the one command that mends it or looks closer. Nothing is changed.
    """
    checks = run_checks(gateway)
    document = {"schema": "din.doctor/1", "items": [check._asdict() for check in checks]}
    show(output, json.dumps(document).encode(), checks, COLUMNS, lambda check: check.name)
    if output in ("table", "wide"):
        for check in checks:
            if check.fix:
                tell = shout if check.state == "fail" else say
                tell(f"{check.name}: {check.fix}")
    failed = [check.name for check in checks if check.state == "fail"]
    if failed:
        say(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
        raise click.exceptions.Exit(EXIT_FAILED)


def run_checks(gateway: str | None) -> list[Check]:
    """All checks; none of them raises."""
    return looked_at(
        (
            Row("settings", check_settings),
            *MACHINE,
            Row("disk", _disks, late_fix="mount | grep -e nfs -e cifs -e fuse"),
            Row("ports", check_ports),
            Row("trust", _trust),
            Row("admission", _admission, 20.0),
            Row("gateway", partial(check_gateway, gateway), 15.0, "fail", "din down && din up"),
        )
    )


def check_settings() -> Check:
    """Whether the files and variables can be read; what else they say is shown by `din config`."""
    try:
        load_gateway({}, os.environ)
        load_node({}, os.environ)
        warnings = collect("gateway", {}, os.environ).warnings
    except DinError as error:
        return Check("settings", "fail", error.message, "din config show")
    if warnings:
        return Check("settings", "warn", "; ".join(warnings), "env | grep ^DIN_")
    files = [str(each) for each in (SYSTEM_FILE, user_file(os.environ)) if each.is_file()]
    return Check("settings", "ok", f"read: {', '.join(files) or 'no file, only defaults'}")


def _disks() -> Iterator[Check]:
    return check_disks(places(os.environ), Path(load_gateway({}, os.environ).state_dir))


def _trust() -> Iterator[Check]:
    found = places(os.environ)
    place = gateway_place(found)
    yield check_insecure(place, os.environ)
    yield check_listening(place, os.environ)
    yield check_tls(place, os.environ)
    yield from check_places(found)


def _admission() -> Iterator[Check]:
    return check_admission(places(os.environ))
