"""Cuts of a model that are known already: when they count, and when they must not."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import onnx_models
import pytest
from msgspec.structs import replace

from din.artifacts.files import ArtifactFolder
from din.config import GatewayConfig
from din.domain.model import Artifact, CarveAnswer, CarveRequest, Slice
from din.domain.strategy import Strategy
from din.errors import BadStrategy, NotFound
from din.gateway.registration import carve_cache
from din.gateway.registration.carve_cache import CarveCache, key_of, opened_cache
from din.gateway.registration.carving import Carving
from din.gateway.trust.vault import Vault

REQUEST = CarveRequest(model_path="/a", output_path="/b")
SOURCE = "5" * 64
KEY = key_of(REQUEST, {"": SOURCE}, None)


def answer_of(*contents: bytes, source: str = SOURCE) -> CarveAnswer:
    """An answer of one slice with these files."""
    artifacts = tuple(Artifact(hashlib.sha256(each).hexdigest(), len(each)) for each in contents)
    part = Slice(index=0, slice_id="s", name="slice-0", artifacts=artifacts, inputs=(), outputs=())
    return CarveAnswer(
        source_sha256=source,
        inputs=(),
        outputs=(),
        slices=(part,),
        edges=(),
        cuts=(),
        operators=1,
        opset=17,
        ir_version=8,
    )


class Bench:
    """A cache on a folder, a carver that counts, and an owner of files as `ModelBook` is one."""

    def __init__(self, folder: Path, bytes_max: int = 100_000) -> None:
        self.folder = folder
        self.artifacts = ArtifactFolder(folder / "artifacts", 1 << 30)
        self.reports: list[dict[str, Any]] = []
        self.made = 0
        self.cache = CarveCache(folder / "cache", self.artifacts, bytes_max, self._report)
        self.cache.drop = self._drop

    def _report(self, what: str, **facts: Any) -> None:
        self.reports.append({"what": what, **facts})

    def _drop(self, sha256s: set[str]) -> None:
        for each in sha256s - self.cache.held():
            self.artifacts.remove(each)

    async def ask(self, key: str = KEY, *contents: bytes) -> CarveAnswer:
        contents = contents or (b"slice",)

        async def make() -> CarveAnswer:
            self.made += 1
            await asyncio.sleep(0)
            for each in contents:
                (self.artifacts.path / hashlib.sha256(each).hexdigest()).write_bytes(each)
            return answer_of(*contents)

        return await self.cache.answer(key, make, uploaded=(SOURCE,))

    @property
    def records(self) -> list[Path]:
        return sorted((self.folder / "cache").iterdir())


def play(story: Awaitable[None]) -> None:
    async def whole() -> None:
        await story

    asyncio.run(whole())


def test_the_same_question_is_carved_once_also_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        first = await bench.ask()
        assert await bench.ask() is first
        assert bench.made == 1
        again = Bench(tmp_path)
        assert await again.ask() == first
        assert (again.made, again.reports) == (0, [])
        view = again.cache.view()
        assert (view.hits, view.misses, view.hit_ratio, view.entries) == (1, 0, 1.0, 1)

    play(story())


def test_the_ratio_is_unknown_before_the_first_look_up(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        assert bench.cache.view().hit_ratio is None
        await bench.ask()
        assert bench.cache.view().hit_ratio == 0.0

    play(story())


def test_the_same_question_asked_at_once_is_carved_once(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        answers = await asyncio.gather(*(bench.ask() for _ in range(5)))
        assert bench.made == 1
        assert all(each is answers[0] for each in answers)
        assert (bench.cache.view().hits, bench.cache.view().misses) == (4, 1)

    play(story())


def test_who_asked_first_may_go_while_others_wait(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        asked = [asyncio.create_task(bench.ask()) for _ in range(2)]
        await asyncio.sleep(0)
        asked[0].cancel()
        assert (await asked[1]).source_sha256 == SOURCE
        assert asked[0].cancelled()
        assert bench.made == 1

    play(story())


def test_a_failure_goes_to_all_who_wait_and_is_not_kept(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)

        async def fail() -> CarveAnswer:
            await asyncio.sleep(0)
            raise BadStrategy("no such point")

        asked = (bench.cache.answer(KEY, fail) for _ in range(2))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(each) for each in found] == ["no such point"] * 2
        assert bench.records == []
        assert (await bench.ask()).source_sha256 == SOURCE

    play(story())


def test_all_that_decides_an_answer_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Strategy(partition_points=("a",))
    keys = {
        KEY,
        key_of(REQUEST, {"": "6" * 64}, None),
        key_of(REQUEST, {"": SOURCE, "w.bin": "7" * 64}, None),
        key_of(REQUEST, {"": SOURCE, "w.bin": "8" * 64}, None),
        key_of(replace(REQUEST, strategy=strategy), {"": SOURCE}, None),
        key_of(replace(REQUEST, input_shapes={"x": (1, 3)}), {"": SOURCE}, None),
        key_of(replace(REQUEST, memory_mib_max=9), {"": SOURCE}, None),
        key_of(REQUEST, {"": SOURCE}, "master-1"),
    }
    assert len(keys) == 8
    moved = replace(REQUEST, model_path="/c", output_path="/d", output_fd=3, room_bytes=4)
    assert key_of(moved, {"": SOURCE}, None) == KEY
    monkeypatch.setattr(carve_cache, "__version__", "999")
    assert key_of(REQUEST, {"": SOURCE}, None) not in keys


def test_what_was_not_asked_for_longest_goes_with_its_files(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, bytes_max=9_000)
        keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(3)]
        for number, key in enumerate(keys[:2]):
            await bench.ask(key, bytes(3000) + bytes([number]), b"shared")
        await bench.ask(keys[0])
        await bench.ask(keys[2], bytes(3000) + b"\2", b"shared")
        assert {each.name for each in bench.records} == {keys[0], keys[2]}
        assert bench.artifacts.hashes() == bench.cache.held()
        assert len(bench.cache.held()) == 3
        view = bench.cache.view()
        assert (view.evictions, view.entries) == (1, 2)
        assert view.nbytes <= 9_000
        # A restart with less room keeps those that were asked for last.
        os.utime(tmp_path / "cache" / keys[2], (1, 1))
        assert Bench(tmp_path, bytes_max=5_000).records == [tmp_path / "cache" / keys[0]]

    play(story())


def test_what_is_larger_than_the_cache_is_used_and_not_kept(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, bytes_max=1000)
        assert (await bench.ask(KEY, bytes(2000))).slices
        assert bench.records == []
        assert bench.cache.held() == set()
        assert "over the limit of 1000" in bench.reports[0]["reason"]

    play(story())


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def rename(path: Path) -> None:
    path.rename(path.with_name("a" * 64))


@pytest.mark.parametrize("damage", [cut_short, flip, rename, lambda path: path.write_bytes(b"")])
def test_a_damaged_record_is_removed_said_and_carved_anew(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    async def story() -> None:
        await Bench(tmp_path).ask()
        damage(tmp_path / "cache" / KEY)
        bench = Bench(tmp_path)
        assert bench.records == []
        assert [each["what"] for each in bench.reports] == ["slicing cache entry dropped"]
        await bench.ask()
        assert (bench.made, bench.cache.view().misses) == (1, 1)

    play(story())


def test_foreign_files_in_the_folder_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{KEY}.part").write_bytes(b"half")
    (tmp_path / "cache" / "notes.txt").write_bytes(b"?")
    bench = Bench(tmp_path)
    assert bench.records == []
    assert len(bench.reports) == 2


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("content", [None, b"slic", b"SLICE"])
def test_an_answer_whose_file_is_gone_or_damaged_is_a_miss(
    tmp_path: Path, content: bytes | None, restarted: bool
) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        (artifact,) = (await bench.ask()).slices[0].artifacts
        path = bench.artifacts.file(artifact.sha256)
        path.unlink() if content is None else path.write_bytes(content)
        if restarted:
            bench = Bench(tmp_path)
        before = bench.made
        await bench.ask()
        is_seen = restarted or content != b"SLICE"  # right length: held against its hash once
        assert bench.made == before + is_seen
        assert len(bench.reports) == is_seen

    play(story())


def test_an_answer_that_refers_to_the_upload_needs_it_and_does_not_keep_it(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        source = hashlib.sha256(b"slice").hexdigest()

        async def make() -> CarveAnswer:
            bench.made += 1
            return answer_of(b"slice", source=source)

        (bench.artifacts.path / source).write_bytes(b"slice")
        for _ in range(2):
            await bench.cache.answer(KEY, make, uploaded=(source,))
        assert (bench.made, bench.cache.held()) == (1, set())
        bench.artifacts.remove(source)
        await bench.cache.answer(KEY, make, uploaded=(source,))
        assert bench.made == 2

    play(story())


def test_without_the_cache_nothing_of_it_stays(tmp_path: Path) -> None:
    artifacts = ArtifactFolder(tmp_path / "artifacts", 1 << 30)

    def start(**settings: Any) -> CarveCache | None:
        config = GatewayConfig(**settings)
        return opened_cache(tmp_path / "cache", artifacts, config, lambda what, **_: None)

    cache = start(slicing_cache_enabled=True)
    assert cache is not None
    assert cache.view().nbytes_max == 128_000_000
    assert (tmp_path / "cache").exists()
    assert start() is None
    assert not (tmp_path / "cache").exists()


# With a real carver.


class Shop:
    """The rooms of a gateway that carve, with a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vault = Vault(folder / "trust", is_signing=True)
        self.artifacts = ArtifactFolder(folder / "artifacts", 1 << 30)
        self.reports: list[str] = []
        self.cache = CarveCache(
            folder / "slicing-cache",
            self.artifacts,
            1 << 20,
            lambda what, **_: self.reports.append(what),
        )
        self.carving = Carving(self.artifacts, folder / "carving", self.vault, self.cache)

    def upload(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        (self.artifacts.path / sha256).write_bytes(data)
        return sha256

    async def carve(self, source: str, *, is_sealed: bool = False) -> CarveAnswer:
        return await self.carving.carve(REQUEST, source, is_sealed=is_sealed)


def test_a_changed_file_is_cut_anew_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop(tmp_path)
        first, second = shop.upload(onnx_models.double()), shop.upload(onnx_models.double() + b"")
        assert first == second
        one = await shop.carve(first)
        assert await shop.carve(second) is one
        changed = shop.upload(onnx_models.double() + bytes((0x32, 1, 65)))  # a documentation text
        other = await shop.carve(changed)
        assert other.source_sha256 == changed != one.source_sha256
        view = shop.cache.view()
        assert (view.hits, view.misses) == (1, 2)

    play(story())


def plain_files(folder: Path) -> list[Path]:
    files = [each for each in folder.rglob("*") if each.is_file()]
    return [each for each in files if b"Add" in each.read_bytes()]


def test_a_sealed_model_is_kept_in_memory_with_sealed_slices_and_counts_for_its_master_key_only(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        shop = Shop(tmp_path)
        source = shop.upload(onnx_models.double())
        sealed = await shop.carve(source, is_sealed=True)
        await shop.carving.seal_source(source)
        shop.artifacts.remove_plain(source)
        assert not plain_files(tmp_path)
        assert sealed.slices[0].artifacts[0].is_sealed
        assert await shop.carve(source, is_sealed=True) is sealed
        assert list((tmp_path / "slicing-cache").iterdir()) == []
        (tmp_path / "trust" / "sealing.key").rename(tmp_path / "old.key")
        new = Shop(tmp_path)
        with pytest.raises(Exception, match=r"key|sealed|open"):
            await new.carve(source, is_sealed=True)  # neither can the source be opened
        assert new.cache.view().hits == 0

    play(story())


def test_a_source_that_was_not_uploaded_is_refused_and_not_kept(tmp_path: Path) -> None:
    async def story() -> None:
        shop = Shop(tmp_path)
        with pytest.raises(NotFound):
            await shop.carve("9" * 64)
        assert list((tmp_path / "slicing-cache").iterdir()) == []

    play(story())
