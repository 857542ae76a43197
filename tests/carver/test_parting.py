"""A carver whose model has taken it over: what its keeper still lets it do."""

from __future__ import annotations

import socket
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from din.carver import keeper
from din.carver.keeper import Keeper, store_nothing, store_of
from din.carver.spoken import ANSWER, ERROR, FILE, Ended
from din.domain.model import CarveRequest
from din.errors import DinError, Internal

TAKEN_OVER = """
import ctypes, os, signal, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the carver's main does
from din.carver import parting
from din.carver.carve import read_request
def taken(request, contents, store, version):
    {act}
parting.carve = taken
try:
    print(parting.carry_out(read_request(sys.stdin.buffer.read())))
except parting.DinError as error:
    print(error.message)
try:
    os.waitpid(-1, os.WNOHANG)
    print("a process is left")
except ChildProcessError:
    print("no process is left", len(os.listdir("/proc/self/fd")))
"""


def frame(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(1, "big") + len(data).to_bytes(8, "big") + data


def file_of(data: bytes) -> bytes:
    """In two pieces."""
    head = FILE.to_bytes(1, "big") + len(data).to_bytes(8, "big")
    pieces = (data[:3], data[3:], b"") if data[3:] else (data, b"") if data else (b"",)
    return head + b"".join(len(each).to_bytes(4, "big") + each for each in pieces)


def heard(store: keeper.Store, said: bytes, bytes_max: int = 1000) -> tuple[bytes, bool]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        return Keeper(store, bytes_max).answer(ours)


def into(folder: Path) -> keeper.Store:
    return store_of(CarveRequest(model_path="m", output_path=str(folder)))


def test_a_file_gets_the_name_of_what_it_holds_whatever_its_maker_says(tmp_path: Path) -> None:
    said = heard(into(tmp_path), file_of(b"content") + frame(ANSWER, b"{}"))
    assert said == (b"{}", False)
    (made,) = tmp_path.iterdir()
    assert made.name == sha256(b"content").hexdigest()
    assert made.read_bytes() == b"content"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (file_of(b"x" * 501) * 2, "more of this model than a model can give"),
        (FILE.to_bytes(1, "big") + b"\xff" * 8, "more of this model than a model can give"),
        (ERROR.to_bytes(1, "big") + b"\xff" * 8, "which is nothing"),
        (frame(9, b""), "which is nothing"),
    ],
)
def test_more_than_a_model_gives_is_refused_and_nonsense_too(
    tmp_path: Path, said: bytes, words: str
) -> None:
    with pytest.raises(Internal, match=words):
        heard(into(tmp_path), said)


def test_the_number_of_files_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FILES_MAX", 2)
    with pytest.raises(Internal, match="more of this model"):
        heard(into(tmp_path), file_of(b"") * 3)


def test_who_was_asked_for_no_file_gives_none() -> None:
    with pytest.raises(DinError, match="was asked for none"):
        heard(store_nothing, file_of(b"abc"))


@pytest.mark.parametrize("cut_at", [0, 1, 8, 9, 12, 16, 22])
def test_a_file_that_ends_early_is_not_kept(tmp_path: Path, cut_at: int) -> None:
    with pytest.raises(Ended):
        heard(into(tmp_path), file_of(b"content")[:cut_at])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("os.abort()", "ended by signal 6"),
        ("ctypes.string_at(0)", "ended by signal 11"),
        ("os._exit(3)", "ended with code 3"),
        ("os.kill(os.getpid(), 9)", "Operation not permitted"),
        ("store([b'abc', b''], 10)", "of 10 bytes was announced, and it has 3"),
        ("store([b'abc'] * 2, 3)", "of 3 bytes was announced, and it has 6"),
        ("store((1 / 0 for _ in 'x'), 3)", "the carver failed: ZeroDivisionError"),
        ("store(iter([b'abc', os]), 9)", "the carver failed: TypeError"),
        ("os.write(2, b'first\\nlast words'); os._exit(4)", "it said: last words"),
        ("[sys.stderr.write('x' * 99) for _ in range(9999)]", "null"),
        ("store([b'x'], 1 << 62)", "more of this model than a model can give"),
        ("raise RecursionError('deep')", "the carver failed: RecursionError: deep"),
        ("import wave", "the carver failed"),
        ("open('/etc/passwd')", "the carver failed"),
    ],
)
def test_however_the_part_that_reads_ends_it_is_told_and_nothing_is_left(
    tmp_path: Path, act: str, words: str
) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "out"
    model.write_bytes(b"model")
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_OVER.format(act=act)],
        input=msgspec.json.encode(CarveRequest(model_path=str(model), output_path=str(out))),
        capture_output=True,
        timeout=60,
        check=True,
    )
    told, left = done.stdout.decode().strip().splitlines()
    assert words in told
    assert left.startswith("no process is left")
    assert list(out.iterdir()) == []
