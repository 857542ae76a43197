"""Names that people choose: which are allowed, which were probably meant. Pure."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from din.errors import Conflict, NotFound, UsageError

MODEL_ID_CHARS_MAX: Final = 128
MODEL_ID_BYTES_MAX: Final = 480
"""As UTF-8: a key of the store holds 512, prefix and version included."""


def normal_model_id(text: str) -> str:
    """NFC form of a model id. Raises UsageError for empty, long, '/' or control characters, and
    for what is a way through folders in an address."""
    name = unicodedata.normalize("NFC", text)
    is_printable = all(character.isprintable() for character in name)
    is_short = len(name) <= MODEL_ID_CHARS_MAX and (
        not is_printable or len(name.encode()) <= MODEL_ID_BYTES_MAX
    )
    if name in ("", ".", "..") or not is_short or "/" in name or not is_printable:
        raise UsageError(
            f"model id {text[:160]!r} is not usable",
            hint=f"1 to {MODEL_ID_CHARS_MAX} printable characters without '/', at most "
            f"{MODEL_ID_BYTES_MAX} bytes; not '.' or '..'",
        )
    return name


def id_of(
    name_or_id: str, names: Mapping[str, str], where: str, is_out: Callable[[str], bool]
) -> str:
    """The node meant by a name, an id or the unique beginning of an id; `names` by id. One that was
    thrown out is meant only where no other is: its machine may be back under the same name. Raises
    NotFound or Conflict."""
    if name_or_id in names:
        return name_or_id  # an id is one node's, however others call themselves
    found = [each for each, name in names.items() if name_or_id == name]
    found = found or [each for each in names if name_or_id and each.startswith(name_or_id)]
    found = [each for each in found if not is_out(each)] or found
    if len(found) > 1:
        shown = ", ".join(f"{each} ({names[each]})" for each in sorted(found)[:4])
        raise Conflict(
            f"{name_or_id!r:.80} means {len(found)} nodes", hint=f"give the id of one: {shown}"
        )
    if not found:
        raise NotFound(
            f"no node {name_or_id!r:.80} {where}", hint=nearest(name_or_id, names.values())
        )
    return found[0]


def nearest(wanted: str, known: Iterable[str]) -> str:
    """A hint that names what was probably meant, or what there is."""
    names = sorted(set(known))
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return "nothing is registered yet"
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"there is {shown}"
