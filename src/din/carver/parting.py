"""The carver parts: into one process that reads the model and can reach nothing, and the keeper of
what that makes. A request is carried out by both."""

from __future__ import annotations

import io
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from din.carver.carve import Request, carve, din_version, open_contents
from din.carver.confine import address_bytes_max, give_up, part_from_others
from din.carver.files import Content
from din.carver.keeper import Keeper, complaint_in, ended, store_nothing, store_of
from din.carver.spoken import Ended, Speaker
from din.domain.gateway_view import ErrorView
from din.domain.malformed import MALFORMED
from din.domain.model import MODEL_FILE, CarveRequest
from din.errors import DinError, Internal, error_of_code
from din.worker.confine import close_others, die_with_parent

if TYPE_CHECKING:
    from typing_extensions import Buffer

READERS: Final = ("din.slicing.slicer", "din.slicing.whole", "din.carver.packs")
"""All that reads models, `onnx` with it."""


class Complaints(io.RawIOBase):
    """Standard error of the confined part: what finds no room is lost, and fails nobody."""

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Buffer, /) -> int:
        """All of it, as far as the writer shall know."""
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(2, data)
        return memoryview(data).nbytes


def carry_out(request: Request, *, is_insecure: bool = False) -> bytes:
    """The answer as JSON. Raises DinError: what the confined part says, or what kept its files from
    being kept."""
    contents = open_contents(request)
    mapped_bytes = sum(map(len, contents.values()))
    limit = address_bytes_max(len(contents[MODEL_FILE]), mapped_bytes)
    store = store_of(request) if isinstance(request, CarveRequest) else store_nothing
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    listening, complaining = os.pipe()
    os.set_blocking(complaining, False)  # what nobody reads holds nobody up
    keeper_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _read_model(theirs, complaining, request, contents, keeper_pid, is_insecure)
    theirs.close()
    os.close(complaining)
    exit_code: int | None = None
    try:
        with ours:
            # Weights are in what it gives, models in its memory.
            said, is_error = Keeper(store, limit + mapped_bytes).answer(ours)
    except Ended:
        exit_code = _reaped(pid)
        raise ended(exit_code, complaint_in(listening)) from None
    finally:
        if exit_code is None:
            os.kill(pid, 9)  # it has said all, or must not go on
            _reaped(pid)
        os.close(listening)
    if is_error:
        raise _error_in(said)
    return said


def _reaped(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _error_in(said: bytes) -> DinError:
    try:
        view = msgspec.json.decode(said, type=ErrorView)
    except MALFORMED as error:
        return Internal(f"the carver gives an error that cannot be read: {error}")
    return error_of_code(view.code, view.message, view.hint)


def _read_model(
    stream: socket.socket,
    complaining: int,
    request: Request,
    contents: Mapping[str, Content],
    keeper_pid: int,
    is_insecure: bool,
) -> NoReturn:
    """The life of the confined part."""
    try:
        die_with_parent(keeper_pid)
        empty = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        close_others({stream.fileno(), complaining}, empty)
        os.dup2(complaining, 2)
        os.dup2(complaining, 1)
        complaints = io.BufferedWriter(Complaints())
        sys.stderr = io.TextIOWrapper(complaints, errors="backslashreplace", line_buffering=True)
        speaker = Speaker(stream)
        try:
            said, is_error = _carved(request, contents, speaker, is_insecure), False
        except DinError as error:
            said, is_error = _view_of(error), True
        except Exception as error:
            traceback.print_exc()
            text = f"the carver failed: {type(error).__name__}: {error}"
            hint = "keep the model file and report this"
            said, is_error = _view_of(Internal(text, hint=hint)), True
        speaker.end(said, is_error=is_error)
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(1)


def _carved(
    request: Request, contents: Mapping[str, Content], speaker: Speaker, is_insecure: bool
) -> bytes:
    found = part_from_others()
    for name in READERS:  # nothing can be imported afterwards
        import_module(name)
    version = din_version()
    mapped_bytes = sum(map(len, contents.values()))
    give_up(found, len(contents[MODEL_FILE]), mapped_bytes, is_insecure=is_insecure)
    return msgspec.json.encode(carve(request, contents, speaker.give, version))


def _view_of(error: DinError) -> bytes:
    view = ErrorView(code=error.code, message=error.message[:65_536], hint=error.hint)
    return msgspec.json.encode(view)
