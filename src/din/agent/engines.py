"""What engines this node offers: as they said themselves, within what the operator wants.

An engine is asked in a process of its own, which takes a moment, so a node does not wait for that
to join: it offers what DIN depends on until that was asked, and says it again when it knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from din.backends.asking import ask_engine, ask_engines, missing, offered
from din.backends.registry import BACKENDS, MAKERS, OFFERED_MAX, detect_backends
from din.domain.engine import EngineFacts
from din.domain.node import NodeProfile
from din.errors import UsageError
from din.wire.messages import AnyMessage, EngineNews
from din.wire.registration import fits

REPEAT_EVERY_MS: Final = 60_000.0
"""A gateway that came back has forgotten it."""


class Engines:
    """All calls in the loop's thread."""

    def __init__(
        self,
        wanted: Collection[str],
        folder: Path,
        report: Callable[..., None],
        tell: Callable[[AnyMessage], bool],
    ) -> None:
        """`wanted`: the only ones that are offered; nothing = all. Raises UsageError for a name
        that DIN does not know."""
        for name in wanted:
            if name not in BACKENDS and name not in MAKERS:
                raise UsageError(
                    f"backend {name!r} is not known", hint=f"known are {', '.join(BACKENDS)}"
                )
        self._folder = folder
        self._report = report
        self._tell = tell
        self._installed = detect_backends()
        self._wanted = tuple(wanted) or tuple(self._installed)
        self.facts: dict[str, EngineFacts] = {
            name: EngineFacts(backend=name, version=self._installed[name])
            for name in self._wanted
            if name in self._installed and BACKENDS[name].is_assumed
        }
        self._told_ms: float | None = None
        self._left_out = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Those that slices may be placed on."""
        return offered(self.facts)[:OFFERED_MAX]

    def shown(self, profile: NodeProfile, cluster: str) -> NodeProfile:
        """A profile with the engines as they are known now: as many of them, the first ones, as a
        registration has room for, so that a node with too many joins all the same."""
        names = self.names
        while True:
            fresh = self._with(profile, names)
            if not names or fits(fresh, cluster):
                break
            names = names[:-1]
        left = ", ".join(self.names[len(names) :])
        if left and left != self._left_out:
            self._report("engine_not_offered", engine=left, reason="no room in a registration")
        self._left_out = left
        return fresh

    def _with(self, profile: NodeProfile, names: tuple[str, ...]) -> NodeProfile:
        versions = {name: text for name, text in profile.versions.items() if name not in BACKENDS}
        versions |= {name: self.facts[name].version[:32] for name in names}
        return replace(profile, backends=names, versions=versions)

    async def ask(self, machine: str) -> bool:
        """Ask all of them; whether the node offers something else than before. `machine`: what is
        kept of an engine holds for this hardware only."""
        before = {name: self.facts[name].version for name in self.names}
        known = [name for name in self._wanted if name in self._installed]
        others = [name for name in self._wanted if name not in self._installed]
        facts = {
            name: missing(name) if name in BACKENDS else await ask_engine(name) for name in others
        }
        facts |= await ask_engines(known, folder=self._folder, machine=machine)
        self.facts = facts
        self._told_ms = None
        for each in facts.values():
            if not each.is_usable:
                self._report("engine_not_usable", engine=each.backend, reason=each.trouble)
        left = offered(facts)[OFFERED_MAX:]
        if left:
            self._report("engine_not_offered", engine=", ".join(left), offered=OFFERED_MAX)
        return before != {name: facts[name].version for name in self.names}

    def look(self, now_ms: float) -> None:
        """Tell the gateway what is new or due. At every beat."""
        if self._told_ms is not None and now_ms - self._told_ms < REPEAT_EVERY_MS:
            return
        if self._tell(EngineNews(tuple(self.facts.values()))):
            self._told_ms = now_ms
