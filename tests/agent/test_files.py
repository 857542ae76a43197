"""The node's folder of slice files, with a download that tests steer."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from din.agent.files import FREE_BYTES_KEPT, TRIES_MAX, SliceFiles
from din.domain.model import ARTIFACTS_MAX, Artifact
from din.errors import DinError, Unavailable, Unreachable, UsageError

DATA = bytes(range(256)) * 4
URL = "http://gateway/artifacts/"


def named(data: bytes) -> Artifact:
    return Artifact(hashlib.sha256(data).hexdigest(), len(data))


ARTIFACT = named(DATA)


class Server:
    """Serves `files`; breaks off, lies or ignores ranges when told to."""

    def __init__(self, *files: bytes) -> None:
        self.files = {named(each).sha256: each for each in files}
        self.starts: list[int] = []
        self.breaks: list[int] = []
        self.has_ranges = True
        self.error: OSError | None = None

    async def __call__(
        self,
        url: str,
        start: int,
        sink: Callable[[bytes], object],
        *,
        bytes_max: int,
        on_start: Callable[[int], object] | None = None,
    ) -> None:
        del bytes_max
        self.starts.append(start)
        data = self.files.get(url.rpartition("/")[2])
        if data is None:
            raise Unreachable("no such file")
        first = start if self.has_ranges else 0
        if on_start is not None:
            on_start(first)
        if self.error is not None:
            raise self.error
        end = self.breaks.pop(0) if self.breaks else len(data)
        sink(data[first:end])
        if end < len(data):
            raise Unreachable("the connection broke")
        await asyncio.sleep(0)


def files(folder: Path, server: Server, **settings: object) -> SliceFiles:
    settings.setdefault("free_bytes", lambda _: 1 << 40)
    settings.setdefault("quota_bytes", 1 << 34)
    return SliceFiles(folder, lambda *_, **__: None, fetch=server, **settings)


def use(store: SliceFiles, *artifacts: Artifact) -> tuple[Path, ...]:
    return asyncio.run(store.use(artifacts, URL))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("din.agent.files.RETRY_PAUSE_S", 0)


def test_a_file_is_fetched_once_and_then_is_here(tmp_path: Path) -> None:
    """T60: cached = neither room nor network is needed."""
    server = Server(DATA)
    (path,) = use(files(tmp_path, server), ARTIFACT)
    assert path.read_bytes() == DATA
    full = files(tmp_path, server, free_bytes=lambda _: 0, quota_bytes=1)
    assert use(full, ARTIFACT) == (path,)
    assert server.starts == [0]


def test_a_broken_download_goes_on_from_its_end_also_after_a_restart(tmp_path: Path) -> None:
    server = Server(DATA)
    server.breaks = [100, 100, 100, 100, 100]
    with pytest.raises(Unavailable, match="connection broke"):
        use(files(tmp_path, server), ARTIFACT)
    server.breaks = []
    use(files(tmp_path, server), ARTIFACT)
    assert server.starts == [0, 100, 100, 100, 100, 100]


def test_a_server_without_ranges_sends_all_again(tmp_path: Path) -> None:
    server = Server(DATA)
    server.breaks, server.has_ranges = [100], False
    (path,) = use(files(tmp_path, server), ARTIFACT)
    assert path.read_bytes() == DATA


def test_a_file_of_the_right_length_with_other_bytes_is_never_loaded(tmp_path: Path) -> None:
    """T59: what a power cut or a bad disk left behind is fetched again."""
    server = Server(DATA)
    (tmp_path / ARTIFACT.sha256).write_bytes(bytes(len(DATA)))
    (path,) = use(files(tmp_path, server), ARTIFACT)
    assert path.read_bytes() == DATA
    (tmp_path / f"{ARTIFACT.sha256}.part").write_bytes(bytes(len(DATA)))
    path.unlink()
    (path,) = use(files(tmp_path, server), ARTIFACT)
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("wrong", [bytes(len(DATA)), DATA + b"more", DATA[:-1]])
def test_bytes_that_are_not_the_announced_ones_are_given_up(tmp_path: Path, wrong: bytes) -> None:
    """T59."""
    server = Server()
    server.files[ARTIFACT.sha256] = wrong
    with pytest.raises(DinError, match="could not be fetched"):
        use(files(tmp_path, server), ARTIFACT)
    assert not (tmp_path / ARTIFACT.sha256).exists()
    assert len(server.starts) <= TRIES_MAX + 1


def test_a_full_disk_is_told_in_bytes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """T59."""
    server = Server(DATA)
    server.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(Unavailable, match="1024 bytes are needed"):
        use(files(tmp_path, server), ARTIFACT)
    assert list(tmp_path.iterdir()) == []


def test_a_slice_of_several_files_goes_on_with_the_one_that_broke(tmp_path: Path) -> None:
    """T59, T60: what is whole needs neither room nor network, whatever became of the others."""
    pack, shared = DATA + b"a pack", DATA + b"shared"
    server = Server(DATA, pack, shared)
    server.breaks = [len(DATA), *[100] * (TRIES_MAX + 1)]
    parts = ARTIFACT, named(pack), named(shared)
    with pytest.raises(Unavailable, match="connection broke"):
        use(files(tmp_path, server), *parts)
    (tmp_path / named(shared).sha256).write_bytes(bytes(len(shared)))
    server.breaks, server.starts = [], []
    found = use(files(tmp_path, server), *parts)
    assert [path.read_bytes() for path in found] == [DATA, pack, shared]
    assert server.starts == [100, 0], "the first was whole; the second went on; the third was torn"
    server.starts = []
    assert use(files(tmp_path, server, free_bytes=lambda _: 0, quota_bytes=1), *parts) == found
    assert server.starts == []


def test_a_slice_of_more_files_than_a_worker_can_get_is_refused(tmp_path: Path) -> None:
    server = Server(DATA)
    with pytest.raises(UsageError, match=f"it may have {ARTIFACTS_MAX}"):
        use(files(tmp_path, server), *[ARTIFACT] * (ARTIFACTS_MAX + 1))
    assert server.starts == []


def test_a_disk_without_room_is_seen_before_the_download(tmp_path: Path) -> None:
    server = Server(DATA)
    short = files(tmp_path, server, free_bytes=lambda _: FREE_BYTES_KEPT + len(DATA) - 1)
    with pytest.raises(Unavailable, match="1024 bytes are needed, 67109887 are free"):
        use(short, ARTIFACT)
    assert server.starts == []
    use(files(tmp_path, server, free_bytes=lambda _: FREE_BYTES_KEPT + len(DATA)), ARTIFACT)


def test_over_the_quota_the_least_recently_used_file_goes_but_never_one_in_use(
    tmp_path: Path,
) -> None:
    old, middle, new = (bytes([each]) * 1000 for each in (1, 2, 3))
    store = files(tmp_path, Server(old, middle, new), quota_bytes=2000)
    for number, each in enumerate((old, middle)):
        (path,) = use(store, named(each))
        os.utime(path, (number + 1, number + 1))
    store.release([named(middle)])
    use(store, named(new))
    here = {each.name for each in tmp_path.iterdir()}
    assert here == {named(old).sha256, named(new).sha256}
    with pytest.raises(Unavailable, match="over this node's quota of 2000"):
        use(store, named(middle))


def test_a_plain_file_goes_when_its_content_is_used_from_a_sealed_one(tmp_path: Path) -> None:
    box = DATA[::-1]
    sealed = replace(named(box), plain_sha256=ARTIFACT.sha256, plain_nbytes=len(DATA))
    store = files(tmp_path, Server(DATA, box))
    (plain,) = use(store, ARTIFACT)
    (kept,) = use(store, sealed)
    assert plain.exists(), "the version that is replaced still runs from it"
    store.release([ARTIFACT])
    assert not plain.exists()
    use(store, ARTIFACT)
    store.release([sealed])
    store.release([ARTIFACT])
    assert plain.exists(), "nobody wants it sealed now"
    use(files(tmp_path, Server(DATA, box)), sealed)
    assert (plain.exists(), kept.exists()) == (False, True), "after a restart as well"


def test_a_name_of_content_that_is_no_hash_removes_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    sealed = replace(ARTIFACT, plain_sha256="../outside")
    with pytest.raises(UsageError, match="is not named by a SHA256"):
        use(files(tmp_path / "slices", Server(DATA)), sealed)
    assert outside.exists()


def test_two_slices_that_want_one_file_fetch_it_once(tmp_path: Path) -> None:
    server = Server(DATA)
    store = files(tmp_path, server)

    async def both() -> None:
        await asyncio.gather(*(store.use([ARTIFACT], URL) for _ in range(3)))

    asyncio.run(both())
    assert server.starts == [0]


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "", "0" * 63])
def test_a_name_that_is_no_hash_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not named by a SHA256"):
        use(files(tmp_path, Server()), Artifact(name, 1))
