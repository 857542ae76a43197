"""The gateway's keys for models: it signs what nodes are told, seals files, grants keys to nodes.

Nothing is opened and `cryptography` is not imported before the first use: a gateway that serves its
own machine only, without sealed models, needs neither. Sealing and opening block: call them in a
thread.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from din.domain.model import Artifact
from din.domain.node import FleetNode
from din.errors import BadModel, Unavailable
from din.system.fingerprint import cpu_isa
from din.system.identity import disk_error

if TYPE_CHECKING:
    from din.trust.sealing import ChunkSealer, Header
    from din.trust.signing import SigningKey

LEASE_MS: Final = 120_000
RENEWALS_PER_LEASE: Final = 4
CPU_INFO: Final = Path("/proc/cpuinfo")


class Vault:
    """Keys in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        is_signing: bool = False,
        is_encrypting: bool = False,
        lease_ms: int = LEASE_MS,
    ) -> None:
        """`is_signing`: nodes of other machines may be there. `is_encrypting`: models are sealed
        unless their registration says otherwise."""
        self._folder = folder
        self._is_signing = is_signing
        self._is_encrypting = is_encrypting
        self.lease_ms = lease_ms
        self.has_aes: Callable[[], bool] = lambda: True
        """Whether every processor that will seal or open has instructions for AES."""

    def seals(self, asked: bool | None) -> bool:
        """Whether a model is sealed whose registration asks so; None = it does not say."""
        return self._is_encrypting if asked is None else asked

    @cached_property
    def _signing(self) -> SigningKey:
        from din.trust.signing import open_signing_key

        return open_signing_key(self._folder)

    @cached_property
    def _master(self) -> bytes:
        from din.trust.sealing import open_master_key

        return open_master_key(self._folder)

    @cached_property
    def master_id(self) -> str:
        """Tells master keys apart without telling them. Raises Denied, UsageError, Unavailable."""
        from din.trust.sealing import sha256_hex

        return sha256_hex(b"din master key\0" + self._master)

    @property
    def signing_key(self) -> str:
        """The public half, as a node keeps it. Raises Denied, UsageError, Unavailable."""
        return self._signing.public_text

    def sign(self, statement: bytes) -> bytes:
        """A signature; empty where every node is this user's own on this machine."""
        return self._signing.sign(statement) if self._is_signing else b""

    def grant(self, file: Path, recipient: bytes | None) -> bytes:
        """The key of a sealed file for the owner of a public key (DER), or for this user's nodes on
        this machine. Raises DinError when the file or a key cannot be used."""
        from din.trust.grants import grant_for_machine, grant_for_node
        from din.trust.requests import load_public_key
        from din.trust.sealing import HEADER_BYTES, MASTER_FILE, parse_header, unwrap_by_master

        if recipient is None:
            return grant_for_machine((self._folder / MASTER_FILE).absolute())
        try:
            with file.open("rb") as source:
                header = parse_header(source.read(HEADER_BYTES))
        except OSError as error:
            raise disk_error(file, error) from error
        key = unwrap_by_master(header, self._master)
        return grant_for_node(key, header, load_public_key(recipient))

    def seal(self, descriptor: int, plain_sha256: str, target: Path) -> Artifact:
        """Write the sealed form of an open file to `target`, synced, and say what it is.

        Raises BadModel when the content has another hash, TooLarge, Unavailable for a full disk.
        """
        from hashlib import sha256

        from din.trust.sealing import sealed_pieces, sha256_hex

        nbytes = os.fstat(descriptor).st_size
        header, key = self._new_header(plain_sha256, nbytes)
        digest = sha256()
        # Its mapping goes with the last view of it.
        plain = memoryview(mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ))
        if sha256_hex(plain) != plain_sha256:
            raise BadModel(f"what was to be sealed is not {plain_sha256[:12]}…")
        try:
            with target.open("wb") as sink:
                for piece in sealed_pieces(header, key, plain):
                    digest.update(piece)
                    sink.write(piece)
                sink.flush()
                os.fsync(sink.fileno())
        except OSError as error:
            target.unlink(missing_ok=True)
            raise disk_error(target, error) from error
        return Artifact(digest.hexdigest(), header.nbytes, "model", plain_sha256, nbytes)

    def sealer(self, plain_sha256: str, nbytes: int) -> ChunkSealer:
        """For content that comes in pieces, with the hash and the size that it is to have.

        Raises BadModel, TooLarge, and Denied or Unavailable when there is no key.
        """
        from din.trust.sealing import ChunkSealer

        return ChunkSealer(*self._new_header(plain_sha256, nbytes))

    def _new_header(self, plain_sha256: str, nbytes: int) -> tuple[Header, bytes]:
        from din.trust.sealing import algorithm_for, new_data_key, new_header

        key, algorithm = new_data_key(), algorithm_for(has_aes=self.has_aes())
        return new_header(self._master, key, plain_sha256, nbytes, algorithm), key

    def open(self, file: Path) -> int:
        """A memfd with the content of a file that `seal` wrote; the caller closes it.

        Raises BadModel, Denied, Unavailable.
        """
        from din.trust.sealing import (
            HEADER_BYTES,
            check_length,
            opened_pieces,
            parse_header,
            unwrap_by_master,
        )

        try:
            with file.open("rb") as source:
                header = parse_header(source.read(HEADER_BYTES))
                check_length(header, os.fstat(source.fileno()).st_size)
                key = unwrap_by_master(header, self._master)
                return memory_file(opened_pieces(source.readinto, header, key), header.plain_nbytes)
        except OSError as error:
            raise disk_error(file, error) from error


def has_aes(nodes: Sequence[FleetNode]) -> bool:
    """Whether this machine and every node of the fleet do AES in hardware."""
    try:
        own = cpu_isa(CPU_INFO.read_text(errors="replace"))
    except OSError:
        own = ()
    return all("aes" in isa for isa in (own, *(node.profile.cpu_isa for node in nodes)))


def memory_file(pieces: Iterable[memoryview], nbytes: int) -> int:
    """A memfd with these pieces, so many bytes, to be read from its beginning. Raises Unavailable,
    and what the pieces raise."""
    descriptor = os.memfd_create("din-plain", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as sink:
            sink.writelines(pieces)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise Unavailable(f"no memory for {nbytes} bytes: {error.strerror}") from error
        raise
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
