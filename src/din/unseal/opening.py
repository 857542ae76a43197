"""From a slice's file on disk to memory that nobody can change any more, if its signature holds.

Nothing here parses a model. Neither a key nor a plain byte is written to a disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

from din.domain.malformed import MALFORMED
from din.domain.model import Artifact
from din.errors import BadModel, Denied, Unavailable
from din.trust.authority import read_secret
from din.trust.grants import data_key_of
from din.trust.requests import load_key
from din.trust.sealing import CHUNK_BYTES, HEADER_BYTES, check_length, opened_pieces, parse_header
from din.trust.signing import check_signature
from din.wire.statement import read_statement
from din.wire.unseal import Unseal

SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
CLUSTER_FILE: Final = "cluster.json"
NODE_KEY_FILE: Final = "node.key"
_CHANGED: Final = "remove the file: it is fetched again when the slice is prepared again"


class _Cluster(Struct, frozen=True):
    """What matters here of cluster.json."""

    signing_key: str = ""


class Trusted(Struct, frozen=True):
    """Whom this node believes and with what it opens. Both are absent on a node that never joined:
    it serves its own user's gateway on its own machine."""

    signing_key: str | None
    node_key: ec.EllipticCurvePrivateKey | None


def trusted_in(folder: Path) -> Trusted:
    """What lies in a node's trust folder. Raises Denied, UsageError, Unavailable."""
    cluster, key = folder / CLUSTER_FILE, folder / NODE_KEY_FILE
    if not cluster.exists():
        return Trusted(None, None)
    try:
        found = msgspec.json.decode(cluster.read_bytes(), type=_Cluster)
    except (OSError, *MALFORMED) as error:
        raise Unavailable(
            f"{cluster} cannot be read: {error}", hint="join the cluster anew: din node join -"
        ) from None
    return Trusted(found.signing_key, load_key(read_secret(key)) if key.exists() else None)


def unseal(order: Unseal, trusted: Trusted) -> int:
    """A sealed memfd with the content of the slice's file, or -1 when the order names none.

    Raises Denied for a missing or foreign signature or grant, BadModel for a file that is not what
    was signed, Unavailable when it cannot be read or there is no memory.
    """
    signed = order.statement.encode()
    if trusted.signing_key is not None:
        check_signature(trusted.signing_key, signed, order.signature)
    if order.artifact < 0:
        return -1
    artifacts = read_statement(signed).artifacts
    if order.artifact >= len(artifacts):
        raise BadModel(f"the slice has {len(artifacts)} files, none with index {order.artifact}")
    artifact = artifacts[order.artifact]
    source = _open(Path(order.path), artifact)
    try:
        if artifact.is_sealed:
            return _opened(source, artifact, order.grant, trusted)
        return _copied(source, artifact)
    except OSError as error:
        raise Unavailable(
            f"{order.path} cannot be opened into memory: {error.strerror}",
            hint="free memory on the node, or check its disk",
        ) from None
    finally:
        os.close(source)


def _open(path: Path, artifact: Artifact) -> int:
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise Unavailable(f"{path} cannot be opened: {error.strerror}", hint=_CHANGED) from None
    found = os.fstat(source)
    if not stat.S_ISREG(found.st_mode) or found.st_size != artifact.nbytes:
        os.close(source)
        raise BadModel(
            f"{path} has {found.st_size} bytes, {artifact.nbytes} were signed", hint=_CHANGED
        )
    return source


def _opened(source: int, artifact: Artifact, grant: bytes, trusted: Trusted) -> int:
    header = parse_header(os.pread(source, HEADER_BYTES, 0))
    check_length(header, artifact.nbytes)
    if header.plain_sha256.hex() != artifact.plain_sha256:
        raise Denied("the sealed file holds another content than the signed one", hint=_CHANGED)
    key = data_key_of(grant, header, trusted.node_key)
    at = HEADER_BYTES

    def read(into: memoryview) -> int:
        nonlocal at
        count = os.preadv(source, [into], at)
        at += count
        return count

    return _filled(opened_pieces(read, header, key))


def _copied(source: int, artifact: Artifact) -> int:
    """What is not sealed is copied and hashed, so that a later change on disk changes nothing."""
    return _filled(_checked_pieces(source, artifact))


def _checked_pieces(source: int, artifact: Artifact) -> Iterator[memoryview]:
    digest = hashlib.sha256()
    room = memoryview(bytearray(min(CHUNK_BYTES, artifact.nbytes)))
    for start in range(0, artifact.nbytes, CHUNK_BYTES):
        piece = room[: artifact.nbytes - start]
        if os.preadv(source, [piece], start) != len(piece):
            raise BadModel(f"the file ends after {start} bytes", hint=_CHANGED)
        digest.update(piece)
        yield piece
    if digest.hexdigest() != artifact.sha256:
        raise BadModel("the file is not the one that was signed", hint=_CHANGED)


def _filled(pieces: Iterable[memoryview]) -> int:
    """A memfd with these pieces, sealed against every change."""
    descriptor = os.memfd_create("din-slice", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", buffering=0, closefd=False) as memory:
            for piece in pieces:
                while piece:
                    piece = piece[memory.write(piece) :]  # noqa: PLW2901 - what is left of it
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
