"""Uploads that broke off: what came of them stays, so that the next one goes on from there.

Only what is not sealed is kept: a sealed file cannot be gone on with. Nothing here is believed; the
hash of the whole decides at the end. Room is given back when it is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from din.errors import Conflict

PARTIALS_MAX: Final = 16
"""Kept at once; that which grew last longest ago goes first."""
SUFFIX: Final = ".partial"


class Partials:
    """Parts of files in the folder of artifacts, by the hash that the whole shall have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._busy: set[str] = set()
        self._trim()

    def nbytes(self, sha256: str) -> int:
        """How much of it is here."""
        try:
            return self._path(sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def is_busy(self, sha256: str) -> bool:
        """Whether an upload is writing it now."""
        return sha256 in self._busy

    def remove(self, sha256: str) -> None:
        """Forget it; absent is fine."""
        self._path(sha256).unlink(missing_ok=True)

    @contextmanager
    def written(self, sha256: str, start: int) -> Generator[Path]:
        """The part, for one writer at a time, which goes on at `start`: 0 begins anew. Raises
        Conflict when it ends elsewhere, or is being written."""
        found = self.nbytes(sha256)
        if start and (self.is_busy(sha256) or start != found):
            what = "is being uploaded already" if self.is_busy(sha256) else f"stands at {found}"
            raise Conflict(
                f"the upload of {sha256[:12]}… {what}, and cannot go on at {start}",
                hint="ask where it stands: GET /api/v1/artifacts/SHA256/upload",
            )
        self._busy.add(sha256)
        try:
            yield self._path(sha256)
        finally:
            self._busy.discard(sha256)
            self._trim()

    def give_room(self) -> bool:
        """Remove the one that grew last longest ago; False when there is none that is idle."""
        idle = self._idle()
        if idle:
            idle[0].unlink(missing_ok=True)
        return bool(idle)

    def _trim(self) -> None:
        for path in self._idle()[:-PARTIALS_MAX]:
            path.unlink(missing_ok=True)

    def _idle(self) -> list[Path]:
        found = [
            (path.stat().st_mtime_ns, path)
            for path in self._folder.glob(f"*{SUFFIX}")
            if path.stem not in self._busy
        ]
        return [path for _, path in sorted(found)]

    def _path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}{SUFFIX}"


def digest_of_part(path: Path, nbytes: int) -> Any:
    """The hash so far, to be gone on with. Raises OSError."""
    if nbytes == 0:
        return hashlib.sha256()
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256")
