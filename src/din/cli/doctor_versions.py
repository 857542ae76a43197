"""What `din doctor` sees of versions and of this machine's clock."""

from __future__ import annotations

import ctypes
import platform
import re
import ssl
import struct
import sys
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from din import version
from din.cli.check import Check
from din.cli.doctor_disk import CLOCK_FIX
from din.system.clock import wall_clock_ms

DISTRIBUTION: Final = "din-network"
KERNEL_MIN: Final = (5, 4)
"""pidfd_open came with 5.3; older long-term kernels lack it."""
SHOWN: Final = ("onnxruntime", "numpy", "msgspec", "cryptography")
TIMEX_BYTES: Final = 256
"""More than `struct timex` has on any machine."""
TIME_ERROR: Final = 5
"""adjtimex(2): the clock is not synchronised."""
MAXERROR_OFFSET: Final = 24
PIECES_SHOWN_MAX: Final = 5
DAY_S: Final = 86_400
_NUMBER: Final = re.compile(r"\d+")
_REQUIREMENT: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(?P<terms>[<>=!,.\d\s]*)$")


def check_python() -> Check:
    """Version and word size."""
    seen = f"Python {platform.python_version()}, {platform.machine()}, DIN {version.__version__}"
    if sys.version_info < (3, 11) or sys.maxsize < 2**32:
        fix = "python3.11 -m venv .venv"
        return Check("python", "fail", f"{seen}; 64-bit Python 3.11 is needed", fix)
    return Check("python", "ok", seen)


def check_versions() -> Check:
    """Kernel, libraries, and whether what is installed is what this DIN asks for."""
    kernel = platform.release()
    here = ", ".join(f"{name} {found}" for name in SHOWN if (found := installed(name)))
    seen = f"Linux {kernel}, {' '.join(ssl.OPENSSL_VERSION.split()[:2])}, {here}"
    if numbers(kernel)[:2] < KERNEL_MIN:
        least = ".".join(map(str, KERNEL_MIN))
        return Check("versions", "fail", f"{seen}; Linux {least} is needed", "uname -r")
    requirements = needed()
    if requirements is None:
        seen += f"; what {DISTRIBUTION} needs is not recorded here, so nothing was compared"
        return Check("versions", "warn", seen, f"pip install {DISTRIBUTION}")
    wrong = list(unmet(requirements))
    if wrong:
        shown = "; ".join(wrong[:PIECES_SHOWN_MAX])
        fix = f"pip install --upgrade {DISTRIBUTION}=={version.__version__}"
        return Check("versions", "fail", f"{seen}; not as needed: {shown}", fix)
    return Check("versions", "ok", seen)


def needed() -> list[str] | None:
    """What this DIN asks for: by what was installed, or by the clone that it runs from."""
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        pass
    try:
        with (Path(version.__file__).parents[2] / "pyproject.toml").open("rb") as file:
            return list(tomllib.load(file)["project"]["dependencies"])
    except (OSError, ValueError, KeyError):
        return None


def installed(name: str) -> str:
    """Version of a distribution; empty = it is not here."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def unmet(requirements: list[str]) -> Iterator[str]:
    """Requirements that nothing installed meets; extras and markers are left out."""
    for each in requirements:
        match = _REQUIREMENT.fullmatch(re.sub(r"\[.*?\]", "", each).strip())
        if match is None:  # it has a marker, as those of extras do
            continue
        found = installed(match["name"])
        if not found:
            yield f"{match['name']} is not installed"
        elif not all(_is_met(found, term.strip()) for term in match["terms"].split(",") if term):
            yield f"{match['name']} is {found}, needed {match['terms'].strip()}"


def _is_met(found: str, term: str) -> bool:
    sign, wanted = re.sub(r"[\d.]+$", "", term).strip(), numbers(term)
    have = numbers(found)
    width = max(len(have), len(wanted))
    left, right = (each + (0,) * (width - len(each)) for each in (have, wanted))
    holds = {">=": left >= right, "<": left < right, "==": left == right, "<=": left <= right,
             ">": left > right, "!=": left != right}  # fmt: skip
    return holds.get(sign, True)


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    leading = re.match(r"\D*([\d.]*)", text)
    return tuple(int(each) for each in _NUMBER.findall(leading[1] if leading else ""))


def node_versions_row(found: Mapping[str, str], total: int) -> Check:
    """Whether nodes have this version; `found` is theirs by name, of the `total` that there are."""
    other = [f"{name} has {each}" for name, each in found.items() if each != version.__version__]
    asked = f"{len(found)} of {total}" if len(found) < total else f"all {total}"
    if not other:
        seen = f"{asked} as here: DIN {version.__version__}"
        return Check("node versions", "ok", seen if found else "no node to ask")
    more = f"; {len(other) - PIECES_SHOWN_MAX} more" if len(other) > PIECES_SHOWN_MAX else ""
    seen = f"here is DIN {version.__version__}; {'; '.join(other[:PIECES_SHOWN_MAX])}{more}"
    return Check("node versions", "warn", seen, "din node list -o wide")


def check_own_clock() -> Check:
    """Whether the kernel counts this machine's clock as synchronised; no gateway is asked."""
    now_s = wall_clock_ms() / 1000
    made_s = Path(version.__file__).stat().st_mtime
    if now_s < made_s - DAY_S:
        shown, made = (datetime.fromtimestamp(each, UTC).date() for each in (now_s, made_s))
        seen = f"it stands at {shown}, before DIN was installed on {made}"
        return Check("own clock", "fail", seen, CLOCK_FIX)
    state, error_us = kernel_clock()
    if state == TIME_ERROR:
        seen = "no time service keeps it, says the kernel: certificates count by it"
        return Check("own clock", "warn", seen, CLOCK_FIX)
    return Check("own clock", "ok", f"kept by a time service, to {error_us / 1000:.0f} ms")


def kernel_clock() -> tuple[int, int]:
    """State of adjtimex(2) and the largest error in us; nothing is set. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    timex = ctypes.create_string_buffer(TIMEX_BYTES)
    state = int(libc.adjtimex(timex))
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex is refused")
    return state, int(struct.unpack_from("l", timex, MAXERROR_OFFSET)[0])
