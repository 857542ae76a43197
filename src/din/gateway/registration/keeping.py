"""Which files of the artifact folder may go: those that no version needs, and plain forms of what
shall be sealed, as soon as nothing is in the making whose files are in no record yet."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from din.artifacts.files import ArtifactFolder


class ArtifactKeeper:
    """Drops artifacts, never too early."""

    def __init__(
        self,
        artifacts: ArtifactFolder,
        needed: Callable[[], set[str]],
        fetched: Callable[[], set[str]],
    ) -> None:
        """`needed`: the files of all versions; `fetched`: those that nodes fetch as they are."""
        self._artifacts = artifacts
        self._needed = needed
        self._fetched = fetched
        self.needed_too: Callable[[], set[str]] = set
        """Artifacts that somebody else keeps: the slicing cache."""
        self._builds = 0
        """Versions and probes in the making."""
        self._unneeded: set[str] = set()
        self._sealed: set[str] = set()
        """Sources whose plain form has to go."""

    @contextmanager
    def building(self) -> Generator[None]:
        """Something is in the making: nothing is dropped until it is done."""
        self._builds += 1
        try:
            yield
        finally:
            self._builds -= 1
            self.drop(set())

    @contextmanager
    def borrowing(self) -> Generator[set[str]]:
        """Artifacts that are made for a while: what is put into the set goes at the end, unless a
        version needs it."""
        made: set[str] = set()
        with self.building():
            try:
                yield made
            finally:
                self._unneeded |= made

    def drop(self, sha256s: set[str]) -> None:
        """Drop those that nobody needs, as soon as nothing is in the making."""
        self._unneeded |= sha256s
        if self._builds:
            return
        if self._unneeded:
            for sha256 in self._unneeded - self._needed() - self.needed_too():
                self._artifacts.remove(sha256)
            self._unneeded.clear()
        if self._sealed:
            fetched = self._fetched()
            for sha256 in self._sealed - fetched:
                self._artifacts.remove_plain(sha256)
            self._sealed &= fetched

    def keep_sealed(self, sha256s: set[str]) -> None:
        """Keep these in sealed form only, from when nothing is in the making that may read them and
        no version of which nodes fetch them as they are: one model may be sealed and plain."""
        self._sealed |= sha256s
        self.drop(set())
