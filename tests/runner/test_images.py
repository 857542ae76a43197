"""Layers become one folder, and nothing that an image says leads out of it."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
from pathlib import Path
from typing import Any

import pytest

from din.errors import TooLarge, UsageError
from din.runner.image import read_image
from din.runner.layers import Unpacking
from tests.runner.images import Layout, layer


def nothing() -> None:
    """Nobody stops it."""


def unpacked(tmp_path: Path, *layers: bytes, nbytes_max: int = 2**20) -> Path:
    made = Layout(tmp_path / "image", layers)
    root = tmp_path / "root"
    image = read_image(made.folder, "", nothing)
    Unpacking(root, nothing, nbytes_max=nbytes_max).unpack(image)
    return root


def files_of(root: Path) -> set[str]:
    return {str(each.relative_to(root)) for each in root.rglob("*")}


def test_a_later_layer_hides_and_replaces_what_an_earlier_one_has(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        layer(("a/one", "1", "file"), ("a/two", "2", "file"), ("b/three", "3", "file")),
        layer(
            ("a/new", "n", "file"),
            ("a/.wh..wh..opq", "", "file"),
            ("b/.wh.three", "", "file"),
            ("c", "here", "file"),
        ),
        layer(("c", "", "folder"), ("c/d", "4", "file"), ("e", "c/d", "link")),
    )
    assert files_of(root) == {"a", "a/new", "b", "c", "c/d", "e"}
    assert (root / "e").stat().st_ino == (root / "c" / "d").stat().st_ino


def test_a_link_to_a_full_path_leads_where_the_container_would_see_it(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        layer(("lib", "/usr/lib", "symlink"), ("usr/lib", "", "folder")),
        layer(("lib/x", "here", "file")),
    )
    assert (root / "usr" / "lib" / "x").read_text() == "here"
    assert (root / "lib").is_symlink()


def test_devices_are_not_made_and_no_file_raises_privileges(tmp_path: Path) -> None:
    root = unpacked(tmp_path, layer(("dev/mem", "", "device"), ("bin/su", "x", "file")))
    assert files_of(root) == {"dev", "bin", "bin/su"}
    assert (root / "bin" / "su").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([("../out", "x", "file")], "leaves the image"),
        ([("a/../../out", "x", "file")], "leaves the image"),
        ([("/out", "x", "file")], "leaves the image"),
        ([("l", "..", "symlink"), ("l/out", "x", "file")], "leaves the image"),
        ([("l", "a/../..", "symlink"), ("a", "", "folder"), ("l/out", "x", "file")], "leaves"),
        ([("l", "l", "symlink"), ("l/out", "x", "file")], "over 40 links"),
        ([("f", "x", "file"), ("f/out", "x", "file")], "which is a file"),
        ([("h", "../out", "link")], "leaves the image"),
        ([("h", "missing", "link")], "which is no file"),
        ([("a/.wh...", "", "file")], "hides nothing"),
        ([("a/.wh.", "", "file")], "hides nothing"),
    ],
)
def test_a_layer_that_leads_out_is_refused(tmp_path: Path, entries: Any, told: str) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(UsageError, match=told):
        unpacked(tmp_path, layer(*entries))
    assert out.read_text() == "mine"
    assert files_of(tmp_path) >= {"out"}


def test_a_file_written_over_a_link_replaces_the_link_and_not_its_target(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    root = unpacked(tmp_path, layer(("l", str(out), "symlink"), ("l", "other", "file")))
    assert out.read_text() == "mine"
    assert (root / "l").read_text() == "other"


def test_an_image_over_its_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="more than 10 bytes"):
        unpacked(tmp_path, layer(("a", "x" * 11, "file")), nbytes_max=10)


def test_a_blob_that_was_changed_is_refused(tmp_path: Path) -> None:
    made = Layout(tmp_path / "image", [layer(("a", "x", "file"))])
    blob = made.blob(made.layers[0])
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(UsageError, match="and digest sha256") as caught:
        read_image(made.folder, "", nothing)
    assert str(blob) in caught.value.message
    blob.unlink()
    with pytest.raises(UsageError, match="lacks blob"):
        read_image(made.folder, "", nothing)


def test_another_digest_than_the_one_asked_for_is_refused(tmp_path: Path) -> None:
    made = Layout(tmp_path / "image", [layer(("a", "x", "file"))])
    digest = made.manifest["digest"]
    assert read_image(made.folder, digest, nothing).digest == digest
    other = f"sha256:{'0' * 64}"
    with pytest.raises(UsageError, match=f"has digest {digest}, the settings ask for {other}"):
        read_image(made.folder, other, nothing)


def test_the_image_for_this_machine_is_taken_of_several(tmp_path: Path) -> None:
    made = Layout(tmp_path / "image", [layer(("a", "x", "file"))])
    own = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    right = {**made.manifest, "platform": {"architecture": own, "os": "linux"}}
    wrong = {**made.config, "platform": {"architecture": "riscv64", "os": "linux"}}
    made.index(wrong, right)
    assert read_image(made.folder, "", nothing).digest == right["digest"]
    made.index(right, right)
    with pytest.raises(UsageError, match="holds 2 images"):
        read_image(made.folder, "", nothing)
    made.index(wrong)
    with pytest.raises(UsageError, match="holds 0 images"):
        read_image(made.folder, "", nothing)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[" * 9000, json.dumps({"manifests": [{"digest": "../x"}]}).encode()],
)
def test_a_broken_index_is_named(tmp_path: Path, content: bytes) -> None:
    made = Layout(tmp_path / "image", [])
    (made.folder / "index.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"index\.json is no index"):
        read_image(made.folder, "", nothing)


def test_a_digest_is_no_path(tmp_path: Path) -> None:
    made = Layout(tmp_path / "image", [])
    made.index({**made.manifest, "digest": "sha256:../../../etc/passwd"})
    with pytest.raises(UsageError, match="no sha256 digest"):
        read_image(made.folder, "", nothing)


def test_a_folder_that_is_no_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither an OCI image layout"):
        read_image(tmp_path, "", nothing)
    (tmp_path / "usr").mkdir()
    assert read_image(tmp_path, "", nothing).digest == ""
    with pytest.raises(UsageError, match="has no digest"):
        read_image(tmp_path, "sha256:1", nothing)
    with pytest.raises(UsageError, match="no folder that can be read"):
        read_image(tmp_path / "missing", "", nothing)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_belong_to_whom_the_layer_says(tmp_path: Path) -> None:
    root = unpacked(tmp_path, layer(("a/b", "x", "file"), ids=4321))
    assert (root / "a" / "b").stat().st_uid == 4321


def raw_layer(*entries: tuple[str, bytes, dict[str, Any]]) -> bytes:
    """A layer of entries whose every field is said."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, fields in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            for field, value in fields.items():
                setattr(entry, field, value)
            archive.addfile(entry)
    return buffer.getvalue()


def test_a_link_in_the_place_of_a_folder_on_the_way_changes_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "host"
    (outside / "etc").mkdir(parents=True)
    (outside / "etc").chmod(0o700)
    before = (outside / "etc").stat()
    unpacked(
        tmp_path,
        raw_layer(
            ("x/etc", tarfile.DIRTYPE, {"mode": 0o777}),
            ("x", tarfile.SYMTYPE, {"linkname": str(outside)}),
        ),
    )
    after = (outside / "etc").stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (tarfile.REGTYPE, {"uid": 2**40}),
        (tarfile.REGTYPE, {"pax_headers": {"mtime": "1e300"}}),
        (tarfile.REGTYPE, {"pax_headers": {"mtime": "nan"}}),
        (tarfile.SYMTYPE, {"pax_headers": {"linkpath": "a\0b"}}),
    ],
)
def test_numbers_and_words_that_no_file_can_have_are_refused(
    tmp_path: Path, kind: bytes, fields: dict[str, Any]
) -> None:
    if "uid" in fields and os.geteuid() != 0:
        fields = {"pax_headers": {"mtime": "1e300"}}  # only root gives files away
    with pytest.raises(UsageError, match=r"layer sha256:\w+"):
        unpacked(tmp_path, raw_layer(("f", kind, fields)))


def test_a_folder_with_a_time_that_no_file_can_have_is_made_all_the_same(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path, raw_layer(("d", tarfile.DIRTYPE, {"pax_headers": {"mtime": "1e300"}}))
    )
    assert (root / "d").is_dir()
