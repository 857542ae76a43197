"""Models whose files are sealed: by real carvers, with real keys."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import onnx_models
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from din.artifacts.files import ArtifactFolder
from din.domain.model import CarveAnswer, CarveRequest
from din.domain.strategy import Strategy
from din.errors import BadModel, Denied, NotFound, TooLarge, UsageError
from din.gateway.registration.carving import Carving, _take
from din.gateway.trust.vault import Vault
from din.system.descriptors import control_pair, send_message
from din.trust.grants import data_key_of
from din.trust.requests import public_key_bytes
from din.trust.sealing import CHUNK_BYTES, open_sealed, parse_header
from din.trust.signing import check_signature

MARKER = b"plain-content-of-the-model"
PLAIN = onnx_models.double() + bytes((0x32, len(MARKER))) + MARKER
SOURCE = hashlib.sha256(PLAIN).hexdigest()


class Shop:
    """A gateway's folders, with an uploaded model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vault = Vault(folder / "trust", is_signing=True)
        self.artifacts = ArtifactFolder(folder / "artifacts", 1 << 30)
        self.carving = Carving(self.artifacts, folder / "carving", self.vault)
        (self.artifacts.path / SOURCE).write_bytes(PLAIN)

    async def carve(self, *, is_sealed: bool = True, points: tuple[str, ...] = ()) -> CarveAnswer:
        request = CarveRequest(
            model_path="", output_path="", strategy=Strategy(partition_points=points)
        )
        return await self.carving.carve(request, SOURCE, is_sealed=is_sealed)

    async def seal(self) -> None:
        """As the book of models does when nothing is in the making."""
        await self.carving.seal_source(SOURCE)
        self.artifacts.remove_plain(SOURCE)

    def plain_files(self) -> list[Path]:
        files = [each for each in self.folder.rglob("*") if each.is_file()]
        return [each for each in files if b"Add" in each.read_bytes()]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def play(folder: Path, story: Callable[[Shop], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story(Shop(folder))

    asyncio.run(whole())


def test_what_was_uploaded_is_read_sealed_or_not_up_to_its_limit(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        descriptors = open_descriptors()
        for _ in ("plain", "sealed"):
            assert await shop.carving.read(SOURCE, len(PLAIN)) == PLAIN
            with pytest.raises(TooLarge, match=f"has {len(PLAIN)} bytes, .* at most 10"):
                await shop.carving.read(SOURCE, 10)
            await shop.seal()
        assert open_descriptors() == descriptors
        assert shop.plain_files() == []
        with pytest.raises(NotFound):
            await shop.carving.read("0" * 64, 10)

    play(tmp_path, story)


def test_a_sealed_model_leaves_nothing_plain_and_can_be_carved_again(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        plain = await shop.carve(is_sealed=False)
        for part in plain.slices:
            shop.artifacts.remove(part.artifacts[0].sha256)
        first = await shop.carve()
        await shop.seal()
        assert shop.plain_files() == []
        again = await shop.carve()
        (one,), (two,) = (each.slices[0].artifacts for each in (first, again))
        assert one.plain_sha256 == two.plain_sha256 == plain.slices[0].artifacts[0].sha256
        assert one.sha256 != two.sha256
        assert first.slices[0].slice_id == plain.slices[0].slice_id
        assert shop.artifacts.hashes() == {SOURCE, one.sha256, two.sha256}
        data = shop.artifacts.file(one.sha256).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (one.nbytes, one.sha256)
        await shop.seal()
        assert list((shop.folder / "carving").iterdir()) == []

    play(tmp_path, story)


def test_a_sealed_source_is_known_but_not_given_out(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        shop.artifacts.remove_plain(SOURCE)
        assert shop.artifacts.file(SOURCE), "there is no sealed form yet"
        await shop.seal()
        assert shop.artifacts.size(SOURCE)
        with pytest.raises(NotFound):
            shop.artifacts.file(SOURCE)
        shop.artifacts.remove(SOURCE)
        assert shop.artifacts.size(SOURCE) is None

    play(tmp_path, story)


def test_a_source_that_was_changed_on_disk_is_refused(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        (shop.artifacts.path / SOURCE).write_bytes(PLAIN + b"\0")
        with pytest.raises(BadModel, match="is not"):
            await shop.carving.seal_source(SOURCE)
        (shop.artifacts.path / SOURCE).write_bytes(PLAIN)
        await shop.seal()
        path = shop.artifacts.sealed_path(SOURCE)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(BadModel, match="bytes instead of"):
            await shop.carve()

    play(tmp_path, story)


def test_a_bad_model_is_refused_the_same_way_when_it_is_sealed(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        (shop.artifacts.path / SOURCE).write_bytes(b"no model")
        with pytest.raises(BadModel, match="the model file") as caught:
            await shop.carve()
        assert "/proc" not in caught.value.message
        assert list((shop.folder / "carving").iterdir()) == []

    before = open_files()
    play(tmp_path, story)
    assert open_files() == before


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "A" * 64, ""])
def test_a_carver_gives_no_file_a_name_that_is_no_hash(tmp_path: Path, name: str) -> None:
    """It has parsed a stranger's model, so it may be the stranger's by now."""
    ours, theirs = control_pair()
    ours.setblocking(False)
    files: dict[str, int] = {}
    descriptor = os.memfd_create("x")
    before = open_files()
    send_message(theirs, name.encode() or b"\0", [descriptor])
    while _take(ours, files):
        pass
    assert files == {}
    assert open_files() == before
    os.close(descriptor)
    ours.close()
    theirs.close()


def test_two_that_seal_one_source_at_once_make_one_sealed_form(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        await asyncio.gather(*(shop.carving.seal_source(SOURCE) for _ in range(5)))
        assert {each.name for each in shop.artifacts.path.iterdir()} == {
            SOURCE, f"{SOURCE}.sealed",
        }  # fmt: skip
        shop.artifacts.remove_plain(SOURCE)
        descriptor = shop.vault.open(shop.artifacts.sealed_path(SOURCE))
        assert os.read(descriptor, len(PLAIN) + 1) == PLAIN
        os.close(descriptor)

    play(tmp_path, story)


def test_what_comes_plain_while_it_comes_sealed_as_well_is_kept_sealed(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        (shop.artifacts.path / SOURCE).unlink()
        others = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield PLAIN[:5]
            await others.wait()
            yield PLAIN[5:]

        async def at_once() -> AsyncIterator[bytes]:
            yield PLAIN

        task = asyncio.create_task(shop.artifacts.put(SOURCE, slowly(), len(PLAIN)))
        await asyncio.sleep(0)
        sealer = shop.vault.sealer(SOURCE, len(PLAIN))
        await shop.artifacts.put(SOURCE, at_once(), len(PLAIN), sealer)
        others.set()
        await task
        assert [each.name for each in shop.artifacts.path.iterdir()] == [f"{SOURCE}.sealed"]

    play(tmp_path, story)


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        await shop.seal()
        before = open_files()
        await shop.carve()
        assert open_files() == before

    play(tmp_path, story)


def test_a_node_opens_a_sealed_slice_with_its_grant_only(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        (artifact,) = (await shop.carve()).slices[0].artifacts
        file = shop.artifacts.file(artifact.sha256)
        node, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        data = file.read_bytes()
        header = parse_header(data)
        grant = shop.vault.grant(file, public_key_bytes(node.public_key()))
        plain = bytes(open_sealed(data, data_key_of(grant, header, node)))
        assert hashlib.sha256(plain).hexdigest() == artifact.plain_sha256
        with pytest.raises(Denied):
            data_key_of(grant, header, other)
        local = shop.vault.grant(file, None)
        assert data_key_of(local, header, None) == data_key_of(grant, header, node)

    play(tmp_path, story)


@pytest.mark.parametrize("extra", [0, 1, 5 - len(MARKER)])
def test_an_upload_is_sealed_as_it_comes_and_never_plain_on_the_disk(
    tmp_path: Path, extra: int
) -> None:
    """Whole chunks, and a last one of any size; pieces of the network end where they like."""
    content = (MARKER * (2 * CHUNK_BYTES // len(MARKER) + 1))[: 2 * CHUNK_BYTES + extra]
    sha256 = hashlib.sha256(content).hexdigest()
    artifacts, vault = ArtifactFolder(tmp_path / "artifacts", 1 << 30), Vault(tmp_path / "trust")
    seen: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 100_000):
            yield content[start : start + 100_000]
            seen.extend(path.read_bytes() for path in artifacts.path.iterdir())

    sealer = vault.sealer(sha256, len(content))
    asyncio.run(artifacts.put(sha256, body(), len(content), sealer))
    assert max(map(len, seen)) >= CHUNK_BYTES, "it was looked at while it came"
    assert not any(MARKER in each for each in seen)
    (path,) = artifacts.path.iterdir()
    assert path == artifacts.sealed_file(sha256)
    assert path.stat().st_size == sealer.nbytes == artifacts.size(sha256)
    descriptor = vault.open(path)
    with open(descriptor, "rb") as plain:
        assert plain.read() == content


@pytest.mark.parametrize("sent", [PLAIN[:-1], PLAIN + b"x", b"y" * len(PLAIN)])
def test_an_upload_that_is_not_what_was_announced_leaves_nothing(
    tmp_path: Path, sent: bytes
) -> None:
    artifacts, vault = ArtifactFolder(tmp_path / "artifacts", 1 << 30), Vault(tmp_path / "trust")

    async def body() -> AsyncIterator[bytes]:
        yield sent

    with pytest.raises(UsageError):
        asyncio.run(artifacts.put(SOURCE, body(), len(PLAIN), vault.sealer(SOURCE, len(PLAIN))))
    assert list(artifacts.path.iterdir()) == []


def test_a_model_that_was_sealed_as_it_came_may_be_carved_in_plain_form(tmp_path: Path) -> None:
    async def story(shop: Shop) -> None:
        plain = await shop.carve(is_sealed=False)
        await shop.seal()
        again = await shop.carve(is_sealed=False)
        assert again.slices == plain.slices

    play(tmp_path, story)


def test_only_a_gateway_with_foreign_nodes_signs(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "a", is_signing=True)
    check_signature(vault.signing_key, b"{}", vault.sign(b"{}"))
    quiet = Vault(tmp_path / "b")
    assert quiet.sign(b"{}") == b""
    assert not (tmp_path / "b").exists(), "no key is made before it is needed"


def test_a_slow_processor_decides_the_cipher(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    content = Random(1).randbytes(1000)
    source = tmp_path / "plain"
    source.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    for has_aes, algorithm in ((True, "aes-256-gcm"), (False, "chacha20-poly1305")):
        vault.has_aes = lambda found=has_aes: found
        with source.open("rb") as file:
            vault.seal(file.fileno(), sha256, tmp_path / "sealed")
        assert parse_header((tmp_path / "sealed").read_bytes()).algorithm == algorithm
        descriptor = vault.open(tmp_path / "sealed")
        assert os.read(descriptor, 2000) == content
        os.close(descriptor)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
