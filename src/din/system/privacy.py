"""What keeps other users, other programs of this user, and crashes from showing what we hold."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from din.errors import Denied

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
OWN_ENTRIES: Final = frozenset({"lock", "log", "lost+found", "nodes", "run"})
"""What may lie in a state directory before a program has claimed it."""
CLAIMED_ENTRY: Final = "identity.json"
_VARIABLES: Final = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV"})
_VARIABLES_OF: Final = (
    *("LC_", "LD_", "GLIBC_", "MALLOC_", "PYTHON"),
    *("OMP_", "OPENBLAS_", "ORT_"),
)
"""How names of variables of the language, the loader, the C library, Python and engines begin."""
_OF_ACCELERATORS: Final = frozenset({
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    *("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "ASCEND_HOME_PATH"),
    *("ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH"),
    *("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_RT_LOG_LEVEL"),
    *("MLU_VISIBLE_DEVICES", "NEUWARE_HOME"),
    *("XILINX_XRT", "XLNX_VART_FIRMWARE", "HAILORT_LOGGER_PATH"),
})  # fmt: skip
"""By which operators and makers' scripts say which devices may be used and where their parts lie:
each by its whole name, since makers keep keys of licences under such beginnings too."""


def hide_memory() -> None:
    """No core files, and nobody but root reads our memory, environment or open files: no debugger
    of the same user either. It ends with `exec`, and forked processes have it as well."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(_PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Undo `hide_memory` for as long as the kernel asks who we are. Raises OSError."""
    prctl(_PR_SET_DUMPABLE, 1)


def hide() -> None:
    """`hide_memory`, and files that we make are for our user only."""
    os.umask(0o077)
    hide_memory()


def end_with_parent() -> None:
    """Be killed when whoever started this process dies: nobody would read the answer, and a model
    may keep it busy for minutes. Raises OSError."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a program needs to find its files and libraries. Keys and passwords that people keep in
    variables are not for a process that reads what a stranger wrote."""
    return {
        name: value
        for name, value in environment.items()
        if name in _VARIABLES or name.startswith(_VARIABLES_OF)
    }


def prctl(option: int, value: int) -> None:
    """See prctl(2). Raises OSError."""
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}) failed: {os.strerror(code)}")


def make_private(path: Path) -> None:
    """Make a directory, and those above it that are missing, for this user only. Raises OSError."""
    for each in reversed([path, *path.parents]):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)


def narrow(path: Path) -> str:
    """Close a state directory to others; answers what it was, or nothing when it was closed.

    Raises Denied when it is not ours alone to close: it belongs to another user, or holds what no
    program of DIN put there."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o077:
        return ""
    told = f"state directory {path} has mode {mode:04o}, open to other users"
    if found.st_uid != os.geteuid():
        raise Denied(f"{told}, and belongs to another", hint=f"sudo chmod 700 {path}")
    if not _is_of_din(path, mode):
        raise Denied(
            f"{told}, and holds files of others",
            hint=f"give DIN a directory of its own with --state-dir, or: chmod 700 {path}",
        )
    path.chmod(0o700)
    return f"{told}: it has mode 0700 now"


def _is_of_din(path: Path, mode: int) -> bool:
    entries = {each.name for each in path.iterdir()}
    # A directory where everybody puts things stays one, whatever an old version left in it.
    return entries <= OWN_ENTRIES or (CLAIMED_ENTRY in entries and not mode & stat.S_ISVTX)


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`plain_environment`, and what says which accelerators an engine may use."""
    chosen = {name: environment[name] for name in _OF_ACCELERATORS if name in environment}
    return plain_environment(environment) | chosen
