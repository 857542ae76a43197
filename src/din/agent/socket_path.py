"""Where a node listens for peers on the same host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from din.errors import Denied

SOCKET_PATH_BYTES_MAX: Final = 60
"""Not the kernel's limit (107): the path also travels in the registration, which is short."""


def socket_path(state_dir: Path, node_id: str) -> Path:
    """Where this node listens for peers on the same host: in its state directory, or, where that
    path is too long, in a directory of this user. Raises Denied when that belongs to another."""
    path = state_dir / "node.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    import tempfile  # for this alone: most nodes have a short path, and little memory

    runtime = os.environ.get("XDG_RUNTIME_DIR") or ""
    folder = (
        Path(runtime) / "din" if runtime else Path(tempfile.gettempdir()) / f"din-{os.getuid()}"
    )
    if len(os.fsencode(folder)) > SOCKET_PATH_BYTES_MAX - 22:
        folder = Path("/tmp") / f"din-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Denied(
            f"{folder} is open to other users, so no socket is put there",
            hint=f"remove it, or run: chmod 700 {folder}",
        )
    return folder / f"{node_id}.sock"
