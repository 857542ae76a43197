"""Artifacts: what stands under a hash is whole."""

import asyncio
import hashlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from din.artifacts import files
from din.artifacts.files import ArtifactFolder
from din.artifacts.partials import PARTIALS_MAX, SUFFIX
from din.errors import Conflict, NotFound, TooLarge, Unavailable, UsageError

BODY = b"slice" * 1000
HASH = hashlib.sha256(BODY).hexdigest()


async def stream(body: bytes, step: int = 777) -> AsyncIterator[bytes]:
    for start in range(0, len(body), step):
        yield body[start : start + step]


def put(folder: ArtifactFolder, sha256: str, body: bytes, nbytes: int | None = None) -> None:
    asyncio.run(folder.put(sha256, stream(body), len(body) if nbytes is None else nbytes))


def test_bytes_come_back_under_their_hash(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path / "a", 1 << 20)
    put(folder, HASH, BODY)
    put(folder, HASH, BODY)
    assert folder.size(HASH) == len(BODY)
    assert folder.file(HASH).read_bytes() == BODY
    assert folder.hashes() == {HASH}
    assert folder.verify(HASH)


@pytest.mark.parametrize("nbytes", [len(BODY) - 1, len(BODY) + 1])
def test_a_wrong_length_is_refused_and_leaves_nothing(tmp_path: Path, nbytes: int) -> None:
    folder = ArtifactFolder(tmp_path, 1 << 20)
    with pytest.raises(UsageError, match=str(nbytes)):
        put(folder, HASH, BODY, nbytes)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_hash_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path, 1 << 20)
    with pytest.raises(UsageError, match="SHA256"):
        put(folder, "0" * 64, BODY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../etc/passwd", "", "A" * 64, "0" * 63, "0" * 65, "0" * 63 + "/"]
)
def test_a_name_that_is_no_hash_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    folder = ArtifactFolder(tmp_path, 1 << 20)
    with pytest.raises(UsageError, match="SHA256"):
        folder.size(name)


def test_the_quota_is_a_limit_and_not_one_more(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path, len(BODY))
    put(folder, HASH, BODY)
    with pytest.raises(TooLarge, match="quota"):
        put(folder, hashlib.sha256(b"x").hexdigest(), b"x")


def test_a_file_damaged_on_disk_is_found_and_dropped(tmp_path: Path) -> None:
    """T59: right length, wrong bytes."""
    folder = ArtifactFolder(tmp_path, 1 << 20)
    put(folder, HASH, BODY)
    folder.file(HASH).write_bytes(bytes(len(BODY)))
    assert not folder.verify(HASH)
    assert folder.size(HASH) is None
    with pytest.raises(NotFound):
        folder.file(HASH)


def test_left_overs_of_a_crash_are_swept(tmp_path: Path) -> None:
    (tmp_path / f"{HASH}.part-1-2").write_bytes(b"half")
    folder = ArtifactFolder(tmp_path, 1 << 20)
    assert folder.hashes() == frozenset()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_really_full_is_a_clear_error(tmp_path: Path, monkeypatch) -> None:
    """A 1 MiB tmpfs, so the kernel itself says ENOSPC."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=False
    )
    if made.returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    try:
        monkeypatch.setattr(files, "FREE_BYTES_KEPT", 0)
        folder = ArtifactFolder(mount, 1 << 30)
        body = bytes(3 << 20)
        with pytest.raises(Unavailable, match="do not fit on the disk"):
            put(folder, hashlib.sha256(body).hexdigest(), body)
        monkeypatch.setattr(ArtifactFolder, "check_room", lambda self, nbytes: None)
        with pytest.raises(Unavailable, match="full"):
            put(folder, hashlib.sha256(body).hexdigest(), body)
        assert list(mount.iterdir()) == []
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_carved_slices_are_moved_in(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path / "a", 1 << 20)
    made = tmp_path / "carved"
    made.write_bytes(BODY)
    folder.adopt(made, HASH)
    assert folder.verify(HASH)
    assert not made.exists()


# Uploads that break off.


class Broken(Exception):
    """The connection was cut."""


async def breaking(body: bytes, at: int) -> AsyncIterator[bytes]:
    yield body[: at // 2]
    yield body[at // 2 : at]
    raise Broken


def broken_off(folder: ArtifactFolder, sha256: str, body: bytes, at: int, start: int = 0) -> None:
    with pytest.raises(Broken):
        asyncio.run(folder.put(sha256, breaking(body[start:], at), len(body), start=start))


def rest(folder: ArtifactFolder, sha256: str, body: bytes, start: int) -> None:
    asyncio.run(folder.put(sha256, stream(body[start:]), len(body), start=start))


LARGE = bytes(range(256)) * 40
LARGE_SHA = hashlib.sha256(LARGE).hexdigest()


def test_an_upload_that_broke_off_goes_on_where_it_stands_also_after_a_restart(
    tmp_path: Path,
) -> None:
    folder = ArtifactFolder(tmp_path, 1 << 20)
    broken_off(folder, LARGE_SHA, LARGE, 1000)
    assert folder.uploaded_bytes(LARGE_SHA) == 1000
    assert folder.size(LARGE_SHA) is None
    assert folder.hashes() == frozenset()
    again = ArtifactFolder(tmp_path, 1 << 20)
    broken_off(again, LARGE_SHA, LARGE, 500, start=1000)
    assert again.uploaded_bytes(LARGE_SHA) == 1500
    rest(again, LARGE_SHA, LARGE, 1500)
    assert again.file(LARGE_SHA).read_bytes() == LARGE
    assert [each.name for each in tmp_path.iterdir()] == [LARGE_SHA]


def test_an_upload_goes_on_nowhere_else(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path, 1 << 20)
    with pytest.raises(Conflict, match="stands at 0"):
        rest(folder, LARGE_SHA, LARGE, 10)
    broken_off(folder, LARGE_SHA, LARGE, 1000)
    for start in (999, 1001):
        with pytest.raises(Conflict, match="stands at 1000"):
            rest(folder, LARGE_SHA, LARGE, start)
    assert folder.uploaded_bytes(LARGE_SHA) == 1000
    rest(folder, LARGE_SHA, LARGE, 0)
    assert folder.file(LARGE_SHA).read_bytes() == LARGE


def test_a_beginning_of_another_file_is_found_out_and_dropped(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path, 1 << 20)
    broken_off(folder, LARGE_SHA, bytes(len(LARGE)), 1000)
    with pytest.raises(UsageError, match="have SHA256"):
        rest(folder, LARGE_SHA, LARGE, 1000)
    assert list(tmp_path.iterdir()) == []


def test_two_that_upload_one_file_do_not_write_into_each_other(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path, 1 << 20)

    async def story() -> None:
        gate, begun = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            begun.set()
            yield LARGE[:1000]
            await gate.wait()
            yield LARGE[1000:]

        first = asyncio.create_task(folder.put(LARGE_SHA, slowly(), len(LARGE)))
        await begun.wait()
        with pytest.raises(Conflict, match="already"):
            await folder.put(LARGE_SHA, stream(LARGE[5:]), len(LARGE), start=5)
        await folder.put(LARGE_SHA, stream(LARGE), len(LARGE))
        assert folder.file(LARGE_SHA).read_bytes() == LARGE
        gate.set()
        await first

    asyncio.run(story())
    assert [each.name for each in tmp_path.iterdir()] == [LARGE_SHA]
    assert folder.file(LARGE_SHA).read_bytes() == LARGE


def test_what_broke_off_gives_its_room_to_what_comes(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path, 12_000)
    broken_off(folder, LARGE_SHA, LARGE, 5000)
    other = b"x" * 9000
    sha256 = hashlib.sha256(other).hexdigest()
    asyncio.run(folder.put(sha256, stream(other), len(other)))
    assert folder.uploaded_bytes(LARGE_SHA) == 0
    assert folder.file(sha256).read_bytes() == other


def test_few_uploads_that_broke_off_are_kept(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path, 1 << 20)
    for number in range(PARTIALS_MAX + 3):
        broken_off(folder, f"{number:064x}", LARGE, 100)
        path = folder.path / f"{number:064x}{SUFFIX}"
        os.utime(path, (number, number))
    kept = {each.name for each in ArtifactFolder(tmp_path, 1 << 20).path.iterdir()}
    assert kept == {f"{number:064x}{SUFFIX}" for number in range(3, PARTIALS_MAX + 3)}
