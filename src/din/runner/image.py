"""An image as a folder holds it: an OCI image layout, checked by digest, or a root filesystem.

Nothing is fetched from anywhere. A blob is read whole and compared with its digest before anything
looks into it.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from din.domain.malformed import MALFORMED
from din.errors import UsageError

DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
LAYERS_MAX: Final = 256
INDEX_DEPTH_MAX: Final = 4
CHUNK_BYTES: Final = 1024 * 1024
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
GZIP, TAR = ("tar+gzip", "tar.gzip"), ("tar",)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")

Look = Callable[[], None]
"""Called often while something takes long; raises when it shall end."""


class Platform(Struct, frozen=True):
    """What an image is for."""

    architecture: str = ""
    os: str = ""


class Descriptor(Struct, frozen=True, rename="camel"):
    """A reference to a blob."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None


class _Index(Struct, frozen=True):
    manifests: list[Descriptor]


class _Manifest(Struct, frozen=True):
    config: Descriptor
    layers: list[Descriptor]


class RunConfig(Struct, frozen=True, rename="pascal"):
    """How an image wants to be run."""

    user: str | None = None
    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str | None = None


class _ImageConfig(Struct, frozen=True):
    architecture: str = ""
    os: str = ""
    config: RunConfig | None = None


class Image(Struct, frozen=True):
    """What is to be unpacked; no layers and no digest = `folder` is the root filesystem itself."""

    folder: Path
    digest: str = ""
    layers: list[Descriptor] = field(default_factory=list[Descriptor])
    config: RunConfig = RunConfig()


def read_image(folder: Path, digest: str, look: Look) -> Image:
    """The image in a folder. Raises UsageError naming the file that is wrong."""
    if not folder.is_absolute() or not folder.is_dir():
        raise UsageError(
            f"image {folder} is no folder that can be read",
            hint="give the full path of an OCI image layout or of a root filesystem",
        )
    if (folder / "oci-layout").exists():
        return _read_layout(folder, digest, look)
    if not any((folder / each).is_dir() for each in ("usr", "bin")):
        raise UsageError(
            f"image {folder} is neither an OCI image layout (it has no file oci-layout) nor a root "
            "filesystem (it has no folder usr or bin)",
            hint="skopeo copy docker://IMAGE oci:FOLDER makes an image layout",
        )
    if digest:
        raise UsageError(
            f"image {folder} is a root filesystem, which has no digest {digest:.80}",
            hint="leave out digest, or give an OCI image layout",
        )
    return Image(folder)


def _read_layout(folder: Path, wanted: str, look: Look) -> Image:
    index = folder / "index.json"
    try:
        text = _whole(index)
        found = msgspec.json.decode(text, type=_Index)
    except MALFORMED as error:
        raise UsageError(f"{index} is no index of images: {error!s:.200}") from None
    chosen = _chosen(folder, found, wanted, look)
    manifest = _document(folder, chosen, _Manifest, look)
    if len(manifest.layers) > LAYERS_MAX:
        raise UsageError(f"image {folder} has {len(manifest.layers)} layers, over {LAYERS_MAX}")
    config = _document(folder, manifest.config, _ImageConfig, look)
    own = ARCHITECTURES.get(platform.machine(), platform.machine())
    if config.os not in ("", "linux") or config.architecture not in ("", own):
        raise UsageError(
            f"image {folder} is for {config.os}/{config.architecture}, this machine is linux/{own}",
            hint=f"skopeo copy --override-arch {own} docker://IMAGE oci:FOLDER",
        )
    for layer in manifest.layers:
        kind_of(layer)
        check_blob(folder, layer, look)
    return Image(folder, chosen.digest, manifest.layers, config.config or RunConfig())


def _chosen(folder: Path, index: _Index, wanted: str, look: Look) -> Descriptor:
    """The manifest for this machine, or the one that was asked for."""
    for _ in range(INDEX_DEPTH_MAX):
        own = ARCHITECTURES.get(platform.machine(), platform.machine())
        by_digest = [each for each in index.manifests if each.digest == wanted]
        fitting = by_digest or [
            each
            for each in index.manifests
            if each.platform is None
            or (each.platform.architecture == own and each.platform.os in ("", "linux"))
        ]
        if len(fitting) != 1:
            names = ", ".join(each.digest for each in index.manifests[:8]) or "none"
            raise UsageError(
                f"image {folder} holds {len(fitting)} images for linux/{own}; manifests: {names}",
                hint="name the one that is meant: digest",
            )
        (found,) = fitting
        if not found.media_type.endswith(("image.index.v1+json", "manifest.list.v2+json")):
            if wanted and not by_digest:
                raise UsageError(
                    f"image {folder} has digest {found.digest}, the settings ask for {wanted:.80}",
                    hint="fetch the image anew, or correct digest if this one is meant",
                )
            return found
        # What lies below an index that was asked for by its digest is what was asked for.
        index = _document(folder, found, _Index, look)
        wanted = "" if by_digest else wanted
    raise UsageError(f"image {folder} has indexes below indexes, over {INDEX_DEPTH_MAX}")


def kind_of(layer: Descriptor) -> str:
    """`gz` or empty, for a layer's compression. Raises UsageError for another one."""
    if layer.media_type.endswith(GZIP):
        return "gz"
    if layer.media_type.endswith(TAR):
        return ""
    raise UsageError(
        f"layer {layer.digest} is {layer.media_type!r:.100}, and only tar and gzip are read",
        hint="skopeo copy --dest-compress-format gzip oci:FOLDER oci:ANOTHER",
    )


def blob_of(folder: Path, descriptor: Descriptor) -> Path:
    """Where a blob lies. Raises UsageError for what is no digest."""
    if not _DIGEST.match(descriptor.digest):
        raise UsageError(
            f"image {folder} names a blob {descriptor.digest!r:.100}, which is no sha256 digest"
        )
    return folder / "blobs" / "sha256" / descriptor.digest.removeprefix("sha256:")


def check_blob(folder: Path, descriptor: Descriptor, look: Look) -> None:
    """Raises UsageError when a blob is missing, or is not what its name says."""
    path, seen, size = blob_of(folder, descriptor), hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                look()
                seen.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise UsageError(
            f"image {folder} lacks blob {descriptor.digest}: {error.strerror}",
            hint="fetch the image anew",
        ) from error
    if size != descriptor.size or f"sha256:{seen.hexdigest()}" != descriptor.digest:
        raise UsageError(
            f"blob {path} has {size} bytes and digest sha256:{seen.hexdigest()}, not "
            f"{descriptor.size} bytes and {descriptor.digest}",
            hint="the file was changed or is damaged: fetch the image anew",
        )


AnyDocument = TypeVar("AnyDocument", bound=Struct)


def _document(folder: Path, of: Descriptor, kind: type[AnyDocument], look: Look) -> AnyDocument:
    check_blob(folder, of, look)
    try:
        return msgspec.json.decode(_whole(blob_of(folder, of)), type=kind)
    except MALFORMED as error:
        raise UsageError(
            f"blob {of.digest} of image {folder} is no {of.media_type:.80}: {error!s:.200}"
        ) from None


def _whole(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > DOCUMENT_BYTES_MAX:
        raise UsageError(f"{path} has more than {DOCUMENT_BYTES_MAX} bytes")
    return data


def numeric_user(config: RunConfig) -> tuple[int, int] | None:
    """UID and GID that an image asks for; None when it names none by number."""
    found: Any = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", config.user or "")
    return (int(found[1]), int(found[2] or found[1])) if found else None
