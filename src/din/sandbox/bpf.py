"""Filters of system calls as the kernel takes them: classic BPF over `struct seccomp_data`.

See seccomp(2). A filter allows what its rules allow and answers everything else with an error.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_BIT: Final = 0x40000000
"""Marks calls of the x32 form of x86-64, whose numbers would be mistaken for others."""
INSTRUCTIONS_MAX: Final = 4096


class Argument(NamedTuple):
    """Holds when argument `place`, as far as `mask` shows it, is one of `values`. Both halves of
    the 64 bits are looked at: the upper half has to be zero where the mask shows it."""

    place: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


Rules = Mapping[str, Sequence[Argument]]
"""Which calls are allowed, by name, and what their arguments have to be; all of them must hold."""


def program(
    architecture: int, numbers: Mapping[str, int], rules: Rules, absent: Sequence[str]
) -> bytes:
    """A filter for one architecture. `absent`: calls that are answered as if the kernel had none,
    so that the C library takes the older one. Calls that `numbers` lacks are left out.

    A process of another architecture is killed: its numbers mean other calls.
    """
    code = [
        _step(_LOAD_WORD, _ARCHITECTURE_AT),
        _step(_JUMP_EQUAL, architecture, then=1),
        _step(_RETURN, _KILL_PROCESS),
        _step(_LOAD_WORD, _NUMBER_AT),
        _step(_JUMP_AT_LEAST, _X32_BIT, otherwise=1),
        _step(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for name in absent:
        if name in numbers:
            code += _when(numbers[name], [_step(_RETURN, _ERRNO | errno.ENOSYS)])
    for name, arguments in rules.items():
        if name in numbers:
            code += _when(numbers[name], _checked(arguments))
    code.append(_step(_RETURN, _ERRNO | errno.EPERM))
    if len(code) > INSTRUCTIONS_MAX:
        raise ValueError(f"a filter of {len(code)} instructions is too long")
    return b"".join(code)


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """The body, which ends in a return, for one call."""
    return [_step(_JUMP_EQUAL, number, otherwise=len(body)), *body]


def _checked(arguments: Sequence[Argument]) -> list[bytes]:
    """Allow when all arguments are as they have to be, else refuse."""
    refused = _step(_RETURN, _ERRNO | errno.EPERM)
    code: list[bytes] = []
    for each in arguments:
        at = _ARGUMENTS_AT + 8 * each.place
        if each.mask > 0xFFFFFFFF:
            code += [_step(_LOAD_WORD, at + 4), _step(_JUMP_EQUAL, 0, then=1), refused]
        code += [_step(_LOAD_WORD, at), _step(_AND, each.mask & 0xFFFFFFFF)]
        left = len(each.values)
        for value in each.values:
            code.append(_step(_JUMP_EQUAL, value, then=left))
            left -= 1
        code.append(refused)
    return [*code, _step(_RETURN, _ALLOW)]


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)
