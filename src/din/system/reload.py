"""Settings that are read again while a program runs, at SIGHUP.

A child reads files and variables (`din.cli.render`), since programs know neither YAML nor flags.
What cannot be read leaves everything as it was. Of what changed, the program takes up what it can
while it runs; the rest is named, and waits for the next start.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic

import msgspec

from din.config import GIVEN_VARIABLE, AnyConfig, GatewayConfig
from din.domain.malformed import MALFORMED
from din.errors import DinError, Unavailable, UsageError
from din.system.notify import ServiceManager

CHILD_S: Final = 20.0
ANSWER_BYTES_MAX: Final = 1024 * 1024


class Reloader(Generic[AnyConfig]):
    """Reads again when asked, one time after the other. All calls in the loop's thread."""

    def __init__(
        self,
        config: AnyConfig,
        live: frozenset[str],
        apply: Callable[[AnyConfig], None],
        *,
        manager: ServiceManager,
        standing: Callable[[], str],
        report: Callable[..., None],
        environment: Mapping[str, str],
    ) -> None:
        """`live` are the keys that `apply` takes up while the program runs; it may raise DinError
        and has then taken up what it could. `report` takes an event and its facts."""
        self._config = config
        self._live = live
        self._apply = apply
        self._manager = manager
        self._standing = standing
        self._report = report
        self._environment = dict(environment)
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read again soon; to ask twice meanwhile is to ask once."""
        self._asked.set()

    async def run(self) -> None:
        """For ever; the caller cancels it."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            self._manager.reloading()
            try:
                await self._reload()
            except DinError as error:
                self._report("reload_failed", error=error.message, hint=error.hint)
            finally:
                self._manager.ready(self._standing())

    async def _reload(self) -> None:
        fresh = await fresh_config(type(self._config), self._environment)
        names = [
            name
            for name in fresh.__struct_fields__
            if getattr(fresh, name) != getattr(self._config, name)
        ]
        taken = {name: getattr(fresh, name) for name in names if name in self._live}
        fixed = [name for name in names if name not in self._live]
        self._config = msgspec.structs.replace(self._config, **taken)
        self._apply(self._config)
        self._report("reloaded", changed=", ".join(taken) or "nothing")
        if fixed:
            hint = "these wait for the next start"
            self._report("reload_warning", unchanged=", ".join(fixed), hint=hint)


async def fresh_config(struct: type[AnyConfig], environment: Mapping[str, str]) -> AnyConfig:
    """Settings as files and variables have them now. Raises DinError."""
    if GIVEN_VARIABLE not in environment:
        raise UsageError(
            "the settings came whole, from no file that could be read again",
            hint="start it with `din gateway start` or `din node start`",
        )
    program = "gateway" if struct is GatewayConfig else "node"
    output, errors = await _child_of(
        [sys.executable, "-P", "-m", "din.cli.render", program], environment
    )
    if not output:
        lines = errors.decode(errors="replace").splitlines()
        told = [each.removeprefix("error: ") for each in lines if each.startswith("error: ")]
        hints = [each.removeprefix("hint: ") for each in lines if each.startswith("hint: ")]
        raise UsageError(
            told[-1] if told else "the settings cannot be read",
            hint=hints[-1] if hints else "din config show",
        )
    try:
        return msgspec.json.decode(output, type=struct)
    except MALFORMED as error:
        raise UsageError(f"the settings cannot be read: {error}", hint="din config show") from None


async def _child_of(command: list[str], environment: Mapping[str, str]) -> tuple[bytes, bytes]:
    """What it writes to both streams; no output where it failed. Raises Unavailable."""
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise Unavailable(f"no process can be started to read the settings: {error}") from None
    try:
        async with asyncio.timeout(CHILD_S):
            output, errors = await child.communicate()
    except TimeoutError:
        raise Unavailable(f"reading the settings took more than {CHILD_S:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    is_good = child.returncode == 0 and len(output) <= ANSWER_BYTES_MAX
    return (output if is_good else b""), errors
