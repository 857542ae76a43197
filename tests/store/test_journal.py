"""The journal finds every line that was changed, moved or taken away, and survives bad disks."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from din.errors import Unavailable
from din.store.journal import Dropped, Journal


def told(gone: Dropped) -> bytes:
    return json.dumps({"dropped": [gone.first_seq, gone.last_seq]}).encode()


def opened(folder: Path, **limits: int) -> Journal:
    journal = Journal(folder, told, **limits)
    assert journal.open() == []
    return journal


def written(folder: Path, count: int = 5, **limits: int) -> Journal:
    journal = opened(folder, **limits)
    for number in range(count):
        journal.append([b'{"n":%d}' % number])
    return journal


def lines(folder: Path) -> list[bytes]:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.jsonl"))).splitlines()


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def test_lines_are_numbered_and_whole_and_read_newest_first(tmp_path: Path) -> None:
    journal = written(tmp_path)
    walk = journal.walk()
    assert (walk.first_seq, walk.last_seq, walk.problems) == (1, 5, [])
    newest = [json.loads(line)["entry"]["n"] for line in journal.newest_first()]
    assert newest == [4, 3, 2, 1, 0]
    journal.close()


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    written(tmp_path).close()
    journal = opened(tmp_path)
    assert journal.append([b"{}", b"{}"]) == 7
    assert journal.walk().problems == []
    journal.close()


def test_files_and_folder_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    written(folder).close()
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def edit(all_lines: list[bytes]) -> list[bytes]:
    return [line.replace(b'{"n":2}', b'{"n":9}') for line in all_lines]


def delete(all_lines: list[bytes]) -> list[bytes]:
    return [line for line in all_lines if b'{"n":2}' not in line]


def swap(all_lines: list[bytes]) -> list[bytes]:
    return [*all_lines[:2], all_lines[3], all_lines[2], *all_lines[4:]]


def cut_the_end(all_lines: list[bytes]) -> list[bytes]:
    return all_lines[:-1]


def edit_the_end(all_lines: list[bytes]) -> list[bytes]:
    return [*all_lines[:-1], all_lines[-1].replace(b'{"n":4}', b'{"n":8}')]


def insert(all_lines: list[bytes]) -> list[bytes]:
    return [*all_lines[:3], all_lines[2], *all_lines[3:]]


def scribble(all_lines: list[bytes]) -> list[bytes]:
    return [*all_lines[:2], b"\xff\xfe nothing", *all_lines[2:]]


def cut_the_begin(all_lines: list[bytes]) -> list[bytes]:
    return all_lines[1:]


@pytest.mark.parametrize("harm", [edit, delete, swap, cut_the_end, edit_the_end, insert, scribble])
def test_any_harm_to_the_lines_is_found(tmp_path: Path, harm) -> None:
    journal = written(tmp_path)
    only_file(tmp_path).write_bytes(b"".join(line + b"\n" for line in harm(lines(tmp_path))))
    assert journal.walk().problems != []
    journal.close()


def test_a_missing_begin_shows_in_the_first_number(tmp_path: Path) -> None:
    journal = written(tmp_path)
    only_file(tmp_path).write_bytes(b"\n".join(cut_the_begin(lines(tmp_path))) + b"\n")
    assert journal.walk().first_seq == 2
    journal.close()


def test_an_end_cut_off_while_it_was_closed_is_told_and_leaves_a_gap(tmp_path: Path) -> None:
    written(tmp_path).close()
    only_file(tmp_path).write_bytes(b"\n".join(lines(tmp_path)[:-2]) + b"\n")
    journal = Journal(tmp_path, told)
    assert journal.open() == ["lines 4 to 5 are missing at the end"]
    assert journal.append([b"{}"]) == 6
    assert journal.walk().problems != []
    journal.close()


def test_a_torn_last_line_is_cut_off_and_told(tmp_path: Path) -> None:
    written(tmp_path).close()
    with only_file(tmp_path).open("ab") as file:
        file.write(b'{"seq":6,"prev')
    journal = Journal(tmp_path, told)
    (problem,) = journal.open()
    assert "14 bytes of an unfinished line" in problem
    journal.append([b"{}"])
    assert journal.walk().problems == []
    journal.close()


def test_old_files_go_and_a_line_says_which(tmp_path: Path) -> None:
    journal = written(tmp_path, 60, file_bytes_max=1_000, files_max=3)
    assert len(list(tmp_path.glob("*.jsonl"))) == 3
    walk = journal.walk()
    assert walk.problems == []
    assert walk.first_seq > 1
    dropped = [json.loads(line)["entry"].get("dropped") for line in journal.newest_first()]
    assert next(each for each in dropped if each)[1] == walk.first_seq - 1
    assert sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) < 3 * 1_300
    journal.close()


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_refuses_a_line_and_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    journal = written(tmp_path)
    whole, write = lines(tmp_path), os.write

    def write_a_part(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:10])
        raise OSError(fault, os.strerror(fault))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_a_part)
        with pytest.raises(Unavailable, match=os.strerror(fault)):
            journal.append([b"{}"])
    assert lines(tmp_path) == whole
    assert journal.append([b"{}"]) == 6
    assert journal.walk().problems == []
    journal.close()


def test_a_disk_that_cannot_take_the_head_refuses_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(Unavailable, match="No space left"):
            journal.append([b"{}"])
    assert lines(tmp_path) == []
    assert journal.append([b"{}"]) == 1
    assert journal.walk().problems == []
    journal.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "audit", told)
    with pytest.raises(Unavailable, match="file/audit"):
        journal.open()
    with pytest.raises(Unavailable, match="not open"):
        journal.append([b"{}"])
