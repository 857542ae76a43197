"""Identity: made once, counted at each start, held by one process, safe against full disks."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from din.errors import Conflict, Denied, Unavailable
from din.system.identity import (
    IDENTITY_FILE,
    NODE_STRIDE,
    SESSION_MAX,
    claim_directory,
    disk_error,
    write_atomically,
    write_together,
)


def start(path: Path, root: Path = Path("/nowhere")):
    with claim_directory(path, "agent") as claim:
        return claim.next_identity(root)


def test_the_id_stays_and_the_session_counts_starts(tmp_path: Path) -> None:
    """T10: a restart is the same node."""
    first, second = start(tmp_path / "node"), start(tmp_path / "node")
    assert first.node_id == second.node_id
    assert len(first.node_id) == 16
    assert (first.session, second.session) == (1, 2)
    assert first.warnings == ()


def test_copies_of_one_directory_do_not_count_alike(tmp_path: Path) -> None:
    """T08 without a serial number to tell the boards apart: one of them is the newer session."""
    start(tmp_path / "node")
    copies = [tmp_path / f"copy{number}" for number in range(8)]
    for copy in copies:
        shutil.copytree(tmp_path / "node", copy)
    found = []
    for copy in copies:
        with claim_directory(copy, "agent") as claim:
            found.append(claim.next_identity(Path("/nowhere"), stride=NODE_STRIDE))
    assert len({each.node_id for each in found}) == 1
    assert len({each.session for each in found}) > 1
    assert all(1 < each.session <= 1 + NODE_STRIDE for each in found)


def test_the_count_begins_again_after_its_end(tmp_path: Path) -> None:
    start(tmp_path)
    path = tmp_path / IDENTITY_FILE
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "session": SESSION_MAX}))
    assert start(tmp_path).session == 1


def test_two_directories_are_two_nodes(tmp_path: Path) -> None:
    assert start(tmp_path / "a").node_id != start(tmp_path / "b").node_id


def test_a_directory_in_use_is_refused_naming_process_and_directory(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from din.system.identity import claim_directory\n"
        "claim = claim_directory(Path(sys.argv[1]), 'gateway')\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Conflict) as caught:
            claim_directory(tmp_path, "agent")
        assert str(tmp_path) in caught.value.message
        assert f"gateway with pid {holder.pid}" in caught.value.message
        holder.kill()
        holder.communicate()
    claim_directory(tmp_path, "agent").close()


@pytest.mark.parametrize("content", [b"", b"{", b'{"node_id": "x", "session": 1}', b"\0" * 100])
def test_a_damaged_identity_is_put_aside_with_a_warning(tmp_path: Path, content: bytes) -> None:
    """A zero-filled file after a power cut costs the identity, not the node."""
    (tmp_path / IDENTITY_FILE).write_bytes(content)
    identity = start(tmp_path)
    assert identity.session == 1
    assert "put aside" in identity.warnings[0]
    assert (tmp_path / "identity.broken").read_bytes() == content


def test_a_directory_copied_to_another_board_gets_a_new_id(tmp_path: Path) -> None:
    """T08: two boards written from one image are two nodes."""
    for number in (1, 2):
        tree = tmp_path / f"board{number}/proc/device-tree"
        tree.mkdir(parents=True)
        (tree / "serial-number").write_bytes(f"10000000{number}\0".encode())
    state = tmp_path / "state"
    first = start(state, tmp_path / "board1")
    assert start(state, tmp_path / "board1").node_id == first.node_id
    cloned = start(state, tmp_path / "board2")
    assert cloned.node_id != first.node_id
    assert "copied from another machine" in cloned.warnings[0]


def test_a_board_without_serial_number_keeps_its_id(tmp_path: Path) -> None:
    tree = tmp_path / "board/sys/class/dmi/id"
    tree.mkdir(parents=True)
    (tree / "product_uuid").write_text("00000000-0000-0000-0000-000000000000\n")
    first = start(tmp_path / "state", tmp_path / "board")
    assert start(tmp_path / "state").node_id == first.node_id


def test_a_full_disk_is_said_and_the_old_file_stays(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Unavailable, match="No space left") as caught:
        write_atomically(path, b"new")
    assert "free some space" in caught.value.hint
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file.json"]


def test_files_that_are_written_together_are_all_synced_before_the_first_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, last = (tmp_path / name for name in ("one", "two", "last"))
    write_together({one: b"1", two: b"2"})
    sync, replace = os.fsync, Path.replace
    done: list[str] = []

    def synced(number: int) -> None:
        sync(number)
        done.append("sync")

    def replaced(self: Path, target: Path) -> Path:
        done.append(target.name)
        return replace(self, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_together({one: b"a", two: b"b", last: b"c"}, mode=0o600)
    assert done == ["sync"] * 3 + ["one", "two", "last", "sync"]
    assert [each.read_bytes() for each in (one, two, last)] == [b"a", b"b", b"c"]
    assert last.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 3


def test_of_files_that_are_written_together_none_is_replaced_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_together({one: b"1", two: b"2"})
    left = [None, OSError(errno.ENOSPC, "No space left on device")]

    def full(_: int) -> None:
        if (error := left.pop()) is not None:
            raise error

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Unavailable, match="No space left"):
        write_together({one: b"a", two: b"b"})
    assert (one.read_bytes(), two.read_bytes()) == (b"1", b"2")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_directory_that_cannot_be_made_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot write"):
        claim_directory(tmp_path / "file/state", "agent")
    denied = disk_error(tmp_path, PermissionError(errno.EACCES, "Permission denied"))
    assert isinstance(denied, Denied)


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    identity = start(tmp_path)
    stored = json.loads((tmp_path / IDENTITY_FILE).read_text())
    assert stored["node_id"] == identity.node_id


def test_no_file_that_somebody_put_there_takes_a_secret_in(tmp_path: Path) -> None:
    """Where others may make files, as in /tmp, a key is saved to a file of our own all the same."""
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "root.key"
    temporary = tmp_path / f".root.key.{os.getpid()}.new"
    for trap in (lambda: temporary.symlink_to(elsewhere), lambda: temporary.touch(0o666)):
        trap()
        caught = os.open(temporary, os.O_RDONLY | os.O_CREAT)
        write_atomically(target, b"secret", mode=0o600)
        assert os.read(caught, 6) == b""
        os.close(caught)
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        assert target.read_bytes() == b"secret"
    assert elsewhere.read_bytes() == b""
