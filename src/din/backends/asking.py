"""Asks each engine in a process of its own what it has: one that was built for another processor
ends by an illegal instruction as it is imported, and a driver may hang. That ends the child.

What a usable engine said is kept on the node's disk, by version of its package, of DIN, and by the
machine; one that could not be used is asked again at the next start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from din.backends.registry import BACKENDS, detect_backends, how_to_get
from din.domain.engine import EngineFacts, bounded
from din.domain.malformed import MALFORMED
from din.system.privacy import engine_environment
from din.version import __version__

ANSWER_S_MAX: Final = 60.0
"""Imports take tens of seconds on a small board with a slow card."""
ANSWER_BYTES_MAX: Final = 64 * 1024
FILE_BYTES_MAX: Final = 256 * 1024
FILE_NAME: Final = "engines.json"
COMMAND: Final = (sys.executable, "-P", "-m", "din.backends")
QUIET: Final = {
    "ORT_DISABLE_TELEMETRY": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
"""Keeps libraries from starting threads and from telling others."""


class _Kept(Struct):
    """What is on the disk."""

    facts: dict[str, EngineFacts] = {}
    keys: dict[str, str] = {}
    """What each was said under."""


async def ask_engines(
    names: Iterable[str] | None = None, *, folder: Path | None = None, machine: str = ""
) -> dict[str, EngineFacts]:
    """What each of these engines (all that are installed) says, one after the other. `folder` keeps
    what was said of `machine`; without one every engine is asked. Never raises for an engine."""
    installed = detect_backends()
    kept = _read(folder / FILE_NAME) if folder is not None else _Kept()
    found: dict[str, EngineFacts] = {}
    keys: dict[str, str] = {}
    for name in installed if names is None else names:
        if name not in installed:
            found[name] = missing(name)
            continue
        key = keys[name] = f"{installed[name]}|{__version__}|{sys.version}|{machine}"
        known = kept.facts.get(name)
        if known is not None and known.is_usable and kept.keys.get(name) == key:
            found[name] = known
        else:
            found[name] = await ask_engine(name, installed[name])
    if folder is not None:
        usable = {name: each for name, each in found.items() if each.is_usable}
        fresh = _Kept(usable, {name: keys[name] for name in usable})
        if fresh != kept:
            _write(folder / FILE_NAME, fresh)
    return found


def missing(name: str) -> EngineFacts:
    """What is said of an engine that is not installed. Raises KeyError for one that DIN does not
    know."""
    entry = BACKENDS[name]
    what = " or ".join(entry.packages) or f"the Python module {entry.imports}"
    return EngineFacts(backend=name, trouble=f"{what} is not installed", hint=how_to_get(entry))


async def ask_engine(
    name: str,
    version: str = "",
    *,
    patience_s: float = ANSWER_S_MAX,
    command: Sequence[str] = COMMAND,
) -> EngineFacts:
    """Ask one in a child. Never raises: whatever ends the child is the trouble that is told."""
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            name,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=ANSWER_BYTES_MAX,
            env=engine_environment(os.environ) | QUIET,
            start_new_session=True,
        )
    except OSError as error:
        return _trouble(name, version, f"it could not be asked: {error.strerror or error}")
    try:
        async with asyncio.timeout(patience_s):
            said, complaint = await _both(child)
            exit_code = await child.wait()
    except TimeoutError:
        said, complaint, exit_code = b"", b"", None
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        _close(child)
    if exit_code is None:
        words = f"it did not answer within {patience_s:g} s and was stopped"
        return _trouble(name, version, words, "a driver or device may be stuck: see the kernel log")
    return _understood(name, version, said, complaint, exit_code)


async def _both(child: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """The beginnings of what the child writes."""
    assert child.stdout is not None
    assert child.stderr is not None
    return await asyncio.gather(_begin_of(child.stdout), _begin_of(child.stderr))


async def _begin_of(stream: asyncio.StreamReader) -> bytes:
    kept = bytearray()
    while chunk := await stream.read(4096):
        kept += chunk[: ANSWER_BYTES_MAX - len(kept)]
    return bytes(kept)


def _close(child: asyncio.subprocess.Process) -> None:
    """A grandchild may hold the pipes open: their ends here are closed whatever it does."""
    transport = getattr(child, "_transport", None)
    if transport is not None:
        transport.close()


def _understood(
    name: str, version: str, said: bytes, complaint: bytes, exit_code: int
) -> EngineFacts:
    if exit_code == 0:
        try:
            # The library may have written lines of its own before.
            return msgspec.json.decode(said.splitlines()[-1], type=EngineFacts)
        except (IndexError, *MALFORMED):
            return _trouble(name, version, "its answer cannot be read")
    if exit_code > 0:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        return _trouble(name, version, f"it ended with exit code {exit_code}: {''.join(last)}")
    try:
        number = signal.Signals(-exit_code)
    except ValueError:
        return _trouble(name, version, f"it was killed by signal {-exit_code}")
    if number is signal.SIGILL:
        return _trouble(
            name,
            version,
            "an illegal instruction (SIGILL) ended it: this build asks for instructions that this "
            "processor does not have",
            "install another version, or one that was built for this processor",
        )
    return _trouble(name, version, f"{number.name} ended it as it was asked")


def _trouble(name: str, version: str, words: str, hint: str = "") -> EngineFacts:
    entry = BACKENDS.get(name)
    hint = hint or (f"python -m din.backends {name}" if entry is not None else "")
    return EngineFacts(backend=name, version=version, trouble=bounded(words), hint=hint)


def offered(facts: Mapping[str, EngineFacts]) -> tuple[str, ...]:
    """Names of those that slices may be placed on, in DIN's order."""
    return tuple(name for name in BACKENDS if name in facts and facts[name].is_usable)


def _read(path: Path) -> _Kept:
    """What was kept; nothing where that cannot be read, since all of it can be asked again."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(FILE_BYTES_MAX), type=_Kept)
    except (OSError, *MALFORMED):
        return _Kept()


def _write(path: Path, kept: _Kept) -> None:
    """A full disk costs asking again at the next start, and nothing else."""
    partial = path.with_suffix(".partial")
    with suppress(OSError):
        partial.write_bytes(msgspec.json.encode(kept))
        partial.replace(path)
