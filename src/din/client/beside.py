"""The files with weights that a model names, opened where they may lie: in the model's folder.

A model may come from a stranger, and what it names is sent away: so nothing outside of the folder
is opened, no link is followed, and nothing but an ordinary file is read.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Final

from din.domain.forms import FORM_BYTES, NCNN, form_of
from din.errors import BadModel, NotFound, UsageError
from din.slicing.externals import external_locations

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def opened_beside(model: BufferedReader) -> Iterator[tuple[str, BufferedReader]]:
    """Location and open file of all weights that lie beside a model, one after the other; each is
    closed afterwards. A file that is no model names none: the gateway says what is wrong with it.

    Raises NotFound for a file that is missing, UsageError for one that may not be sent, TooLarge.
    """
    folder = Path(model.name).absolute().parent
    for location in _locations(model):
        with _open(folder, location) as file:
            yield location, file


def _locations(model: BufferedReader) -> tuple[str, ...]:
    if os.fstat(model.fileno()).st_size == 0:
        return ()
    with mmap.mmap(model.fileno(), 0, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        if (form := form_of(bytes(view[:FORM_BYTES]))) is not None:
            return (Path(model.name).with_suffix(".bin").name,) if form.name == NCNN else ()
        try:
            return external_locations(view)
        except BadModel:
            return ()


def _open(folder: Path, location: str) -> BufferedReader:
    *folders, name = _steps(location)
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in folders:
            outer, inside = inside, os.open(step, _DIRECTORY, dir_fd=inside)
            os.close(outer)
        descriptor = os.open(name, _FILE, dir_fd=inside)
    except FileNotFoundError:
        raise NotFound(
            f"the model keeps weights in the file {location!r}, which is not in {folder}",
            hint="copy it beside the model, under the same name",
        ) from None
    except OSError as error:
        reason = f"cannot be opened without following a link: {error.strerror}"
        raise _refused(location, reason) from None
    finally:
        os.close(inside)
    found = os.fstat(descriptor)
    is_file = stat.S_ISREG(found.st_mode)
    if is_file and found.st_nlink == 1:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    what = f"has {found.st_nlink} names on this disk" if is_file else "is no ordinary file"
    raise _refused(location, what)


def _steps(location: str) -> list[str]:
    steps = [step for step in location.split("/") if step not in ("", ".")]
    if location.startswith("/") or ".." in steps or "\0" in location or not steps:
        raise _refused(location, "does not lie in the model's folder")
    return steps


def _refused(location: str, reason: str) -> UsageError:
    return UsageError(
        f"the model keeps weights in the file {location!r}, which {reason}",
        hint="such a file could be anything on this machine and is not sent: "
        "copy the weights themselves into the model's folder",
    )
