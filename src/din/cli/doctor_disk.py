"""What `din doctor` sees on disk: who may read secrets, how long certificates last, where nodes
listen."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Final

from din.cli.check import Check, Place, State, is_running
from din.config import is_loopback
from din.errors import DinError
from din.system.bound import read_bound

AUTHORITY_LEFT_MIN: Final = timedelta(days=90)
CLOCK_FIX: Final = "timedatectl set-ntp true"
ENTRIES_MAX: Final = 1000
FREE_MIB_MIN: Final = 512
FREE_FILES_MIN: Final = 1000
WRITTEN_BYTES: Final = 64 * 1024
MIB: Final = 1024 * 1024


def check_disks(found: list[Place], state: Path) -> Iterator[Check]:
    """Whether state directories and temporary files can be written and have room; a file system
    that several share is looked at once. None of them raises."""
    folders = {"state": state, "temporary files": _temporary()}
    folders |= {each.name: each.folder for each in found if each.role == "node"}
    seen_before: set[int] = set()
    for name, folder in folders.items():
        there = next((each for each in (folder, *folder.parents) if _is_there(each)), folder)
        device = there.stat().st_dev if _is_there(there) else 0
        if name in ("state", "temporary files") or device not in seen_before:
            yield check_disk(name, folder, there)
        seen_before.add(device)


def _temporary() -> Path:
    """As it was wished: programs pass over a place that takes nothing, and do not say so. Raises
    FileNotFoundError where they would find none."""
    return Path(os.environ.get("TMPDIR") or tempfile.gettempdir()).absolute()


def check_disk(name: str, folder: Path, there: Path) -> Check:
    """Write a file without a name into a folder, or where it would be made, and let it go."""
    option = "TMPDIR=PATH din up" if name == "temporary files" else "din up --state-dir PATH"
    look = f"du -xh {there} | sort -h | tail"
    try:
        facts = os.statvfs(there)
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(WRITTEN_BYTES))
            file.flush()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Check(name, "fail", f"{there} is full: {error.strerror}", look)
        return Check(name, "fail", f"{there} is not writable: {error.strerror}", option)
    free_mib = facts.f_bavail * facts.f_frsize // MIB
    seen = f"{folder}, {free_mib} MiB free"
    if free_mib < FREE_MIB_MIN:
        return Check(name, "warn", seen, look)
    if facts.f_files and facts.f_favail < FREE_FILES_MIN:
        seen = f"{seen}, but room for {facts.f_favail} more files only"
        return Check(name, "warn", seen, f"du -x --inodes {there} | sort -n | tail")
    return Check(name, "ok", seen)


def check_places(found: list[Place], now: datetime | None = None) -> Iterator[Check]:
    """Rows of every state directory of this machine; none of them raises."""
    now = now or datetime.now(UTC)
    for place in found:
        yield from _check_modes(place)
        yield _check_owner(place)
        yield from _check_certificates(place, now)
        if place.role == "node" and is_running(place):
            yield from _check_bound(place)


def _check_modes(place: Place) -> Iterator[Check]:
    yield check_mode(f"{place.name} state directory", place.folder, "warn")
    if not _is_there(place.trust):
        return
    yield check_mode(f"{place.name} trust directory", place.trust, "fail")
    names = {"ca": "authority key", place.role: f"{place.name} key"}
    for path in sorted(place.trust.glob("*.key")):
        yield check_mode(names.get(path.stem, f"{path.stem} key"), path, "fail")


def _check_owner(place: Place) -> Check:
    """Whether all files have the folder's owner: a program that once ran as another user leaves
    what the right one cannot open."""
    name = f"{place.name} owner"
    try:
        owner = place.folder.stat().st_uid
        entries = list(islice(place.folder.iterdir(), ENTRIES_MAX))
        if _is_there(place.trust):
            entries += islice(place.trust.iterdir(), ENTRIES_MAX)
        strange = [each for each in entries if each.lstat().st_uid != owner]
    except OSError as error:
        seen = f"{error.filename} cannot be looked at: {error.strerror}"
        return Check(name, "warn", seen, f"sudo ls -lan {place.folder}")
    if strange:
        seen = f"user {owner} has {place.folder}, user {strange[0].lstat().st_uid} {strange[0]}"
        return Check(name, "fail", seen, f"sudo chown -R {owner} {place.folder}")
    return Check(name, "ok", f"user {owner} has all of {place.folder}")


def check_mode(name: str, path: Path, severity: State) -> Check:
    """Whether nobody but the owner (and root) has any right to a file or folder."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        seen = f"{path} cannot be read: {error.strerror}"
        return Check(name, "fail", seen, f"sudo ls -ld {path}")
    seen = f"{path} has mode {mode & 0o7777:04o}"
    if mode & 0o077:
        return Check(name, severity, f"{seen}: others may use it", f"chmod go= {path}")
    return Check(name, "ok", seen)


def _check_certificates(place: Place, now: datetime) -> Iterator[Check]:
    if place.role == "gateway" and _is_there(place.trust / "ca.pem"):
        yield check_authority(place, now)
    if _is_there(place.trust / f"{place.role}.pem"):
        yield check_certificate(place, now)


def _check_bound(place: Place) -> Iterator[Check]:
    """Where a running node listens for its peers, and whether it may."""
    bound = read_bound(place.folder)
    if bound is None:
        return  # it is just starting
    name, seen = f"{place.name} listening", f"{bound.host}:{bound.port}"
    if bound.is_encrypted:
        yield Check(name, "ok", f"{seen} (mutual TLS)")
    elif is_loopback(bound.host):
        yield Check(name, "ok", f"{seen} (this machine only)")
    else:
        seen = f"INSECURE: {seen} OFF LOOPBACK, in plain text (--insecure-network)"
        yield Check(name, "fail", seen, f"din node join - --name {place.folder.name}")


def check_authority(place: Place, now: datetime) -> Check:
    """How long the cluster's authority lasts."""
    from din.trust.validity import validity_of  # `cryptography`: only where there is something

    path = place.trust / "ca.pem"
    try:
        left = validity_of(path).ends - now
    except DinError as error:
        return Check("authority", "fail", error.message, f"ls -l {path}")
    seen = f"{path} ends {_span(left)}"
    # A new authority is made at the next start, and every machine joins it again.
    fix = f"mv {place.trust} {place.trust}.old"
    if left >= AUTHORITY_LEFT_MIN:
        return Check("authority", "ok", seen)
    return Check("authority", "fail" if left <= timedelta() else "warn", seen, fix)


def check_certificate(place: Place, now: datetime) -> Check:
    """How long a machine's own certificate lasts: it is renewed at two thirds of its life."""
    from din.trust.validity import validity_of

    name, path = f"{place.name} certificate", place.trust / f"{place.role}.pem"
    fix = "din node join -" if place.role == "node" else "din down && din up"
    try:
        validity = validity_of(path)
    except DinError as error:
        return Check(name, "fail", error.message, fix)
    left = validity.ends - now
    seen = f"{path} ends {_span(left)}"
    if now < validity.begins:
        seen = f"{path} begins only at {validity.begins:%Y-%m-%d %H:%M} UTC, by this clock"
        return Check(name, "fail", seen, CLOCK_FIX)
    is_idle = not is_running(place)
    if is_idle and place.role == "gateway":
        return Check(name, "ok", f"{seen}; each start takes a new one")
    if left <= timedelta():
        seen = f"{path} ended {_span(-left)[3:]} ago"
        if is_idle:
            # A gateway renews ended ones for late_renewal_days; the node's log tells when not.
            return Check(name, "warn", f"{seen}: its next start renews it", _start(place))
        return Check(name, "fail", seen, fix)
    if left < (validity.ends - validity.begins) / 3:
        if is_idle:
            told = f"{seen}: the node does not run, nobody renews it"
            return Check(name, "warn", told, _start(place))
        return Check(name, "warn", f"{seen}: its renewal is overdue", fix)
    return Check(name, "ok", seen)


def _start(place: Place) -> str:
    return f"din node start --name {place.folder.name}"


def _span(left: timedelta) -> str:
    hours = left.total_seconds() / 3600
    if abs(hours) >= 72:
        return f"in {hours / 24:.0f} days"
    return f"in {hours:.1f} hours"


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True
