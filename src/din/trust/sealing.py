"""Sealed files: format DINM1, docs/protocol/sealed-slice.md. 1 MiB chunks, each authenticated with
the whole header, so that a file that was cut short, put together anew or renamed does not open.

Knows keys as bytes; who may have them is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from msgspec import Struct
from msgspec.structs import replace

from din.errors import BadModel, Denied, TooLarge
from din.system.identity import write_atomically
from din.trust.authority import read_secret

Algorithm = Literal["aes-256-gcm", "chacha20-poly1305"]
Random = Callable[[int], bytes]
Buffer = bytes | bytearray | memoryview
Reader = Callable[[memoryview], int]
"""Fills a buffer; how many bytes it took."""

MAGIC: Final = b"DINM1"
CHUNK_BYTES: Final = 1024 * 1024
TAG_BYTES: Final = 16
KEY_BYTES: Final = 32
PLAIN_BYTES_MAX: Final = 64 * 1024**3
"""It is opened into memory: more than a node can be expected to hold of one file."""
MASTER_FILE: Final = "sealing.key"

_FACTS: Final = struct.Struct("<5sB2xI4sQ16s32s")
_NONCE_BYTES: Final = 12
WRAPPED_BYTES: Final = _NONCE_BYTES + KEY_BYTES + TAG_BYTES
HEADER_BYTES: Final = _FACTS.size + WRAPPED_BYTES
_CODES: Final[dict[Algorithm, int]] = {"aes-256-gcm": 1, "chacha20-poly1305": 2}
_NAMES: Final[dict[int, Algorithm]] = {code: name for name, code in _CODES.items()}
_CIPHERS: Final = {"aes-256-gcm": AESGCM, "chacha20-poly1305": ChaCha20Poly1305}
_DAMAGED: Final = "it was damaged or changed: remove it, it is fetched again"


class Header(Struct, frozen=True, kw_only=True):
    """The first 132 bytes of a sealed file."""

    algorithm: Algorithm
    nonce_prefix: bytes
    key_id: bytes
    plain_sha256: bytes
    plain_nbytes: int
    wrapped_key: bytes
    """The data key under the gateway's master key, bound to `facts`."""

    @property
    def facts(self) -> bytes:
        """Everything before the wrapped key: what a key is bound to."""
        return _FACTS.pack(
            MAGIC,
            _CODES[self.algorithm],
            CHUNK_BYTES,
            self.nonce_prefix,
            self.plain_nbytes,
            self.key_id,
            self.plain_sha256,
        )

    @property
    def data(self) -> bytes:
        """All bytes, which every chunk is authenticated with."""
        return self.facts + self.wrapped_key

    @property
    def chunks(self) -> int:
        """How many chunks follow."""
        return -(-self.plain_nbytes // CHUNK_BYTES)

    @property
    def nbytes(self) -> int:
        """Of the whole sealed file."""
        return HEADER_BYTES + self.plain_nbytes + TAG_BYTES * self.chunks


def new_header(
    master: bytes,
    data_key: bytes,
    plain_sha256: str,
    plain_nbytes: int,
    algorithm: Algorithm,
    random: Random = os.urandom,
) -> Header:
    """A header for content that is known by hash and size. Raises BadModel, TooLarge."""
    _check_size(plain_nbytes)
    bare = Header(
        algorithm=algorithm,
        nonce_prefix=random(4),
        key_id=random(16),
        plain_sha256=bytes.fromhex(plain_sha256),
        plain_nbytes=plain_nbytes,
        wrapped_key=b"",
    )
    nonce = random(_NONCE_BYTES)
    wrapped = nonce + AESGCM(master).encrypt(nonce, data_key, bare.facts)
    return replace(bare, wrapped_key=wrapped)


def parse_header(data: Buffer) -> Header:
    """The header at the beginning of a sealed file. Raises BadModel; nothing is proven yet."""
    if len(data) < HEADER_BYTES or bytes(data[: len(MAGIC)]) != MAGIC:
        raise BadModel("the file is not sealed: it does not begin with DINM1", hint=_DAMAGED)
    facts = bytes(data[: _FACTS.size])
    _, code, chunk_bytes, prefix, nbytes, key_id, sha256 = _FACTS.unpack(facts)
    name = _NAMES.get(code)
    if name is None or chunk_bytes != CHUNK_BYTES:
        raise BadModel(
            f"the sealed file has algorithm {code} and chunks of {chunk_bytes} bytes, which this "
            "version does not read",
            hint="update DIN on this machine, or register the model again",
        )
    _check_size(nbytes)
    header = Header(
        algorithm=name,
        nonce_prefix=prefix,
        key_id=key_id,
        plain_sha256=sha256,
        plain_nbytes=nbytes,
        wrapped_key=bytes(data[_FACTS.size : HEADER_BYTES]),
    )
    if header.facts != facts:
        raise BadModel("the sealed file has a reserved byte that is not 0", hint=_DAMAGED)
    return header


def unwrap_by_master(header: Header, master: bytes) -> bytes:
    """The data key. Raises Denied when the header was sealed under another master key."""
    nonce, wrapped = header.wrapped_key[:_NONCE_BYTES], header.wrapped_key[_NONCE_BYTES:]
    try:
        return AESGCM(master).decrypt(nonce, wrapped, header.facts)
    except InvalidTag:
        raise Denied(
            "the sealed file belongs to another master key, or its header was changed",
            hint="put the gateway's trust/sealing.key back from a backup, or register again",
        ) from None


class ChunkSealer:
    """Encrypts a stream chunk by chunk: `seal` each whole chunk in order, the last one shorter."""

    def __init__(self, header: Header, data_key: bytes) -> None:
        self._header = header
        self._aad = header.data
        self._cipher = _CIPHERS[header.algorithm](data_key)
        self._index = 0

    @property
    def head(self) -> bytes:
        """What the sealed file begins with."""
        return self._aad

    @property
    def nbytes(self) -> int:
        """Of the whole sealed file."""
        return self._header.nbytes

    @property
    def chunk_bytes(self) -> int:
        """Of the content in each chunk but the last."""
        return CHUNK_BYTES

    def seal(self, chunk: Buffer, /) -> bytes:
        """Ciphertext and tag of the next chunk."""
        is_last = self._index == self._header.chunks - 1
        expected = _last_bytes(self._header) if is_last else CHUNK_BYTES
        assert self._index < self._header.chunks, "more chunks than the header says"
        assert len(chunk) == expected, f"a chunk of {len(chunk)} bytes, expected {expected}"
        nonce = _nonce(self._header, self._index)
        self._index += 1
        return self._cipher.encrypt(nonce, chunk, self._aad)


def sealed_pieces(header: Header, data_key: bytes, plain: Buffer) -> Iterator[bytes]:
    """The whole sealed file in pieces: header, then chunks."""
    assert len(plain) == header.plain_nbytes, "the header is of other content"
    view, sealer = memoryview(plain), ChunkSealer(header, data_key)
    yield header.data
    for start in range(0, header.plain_nbytes, CHUNK_BYTES):
        yield sealer.seal(view[start : start + CHUNK_BYTES])


def opened_pieces(read: Reader, header: Header, data_key: bytes) -> Iterator[memoryview]:
    """The content of a sealed file, chunk by chunk, each in the same memory as the one before;
    `read` fills a buffer with what follows the header and then what follows that.

    Raises BadModel when a byte was changed, or a chunk is missing, doubled or at another place:
    what was yielded before must not be used then.
    """
    aad, cipher = header.data, _CIPHERS[header.algorithm](data_key)
    room = memoryview(bytearray(CHUNK_BYTES + TAG_BYTES))
    plain = memoryview(bytearray(CHUNK_BYTES))
    for index in range(header.chunks):
        nbytes = CHUNK_BYTES if index < header.chunks - 1 else _last_bytes(header)
        sealed, part = room[: nbytes + TAG_BYTES], plain[:nbytes]
        if read(sealed) != len(sealed):
            raise BadModel(f"the sealed file ends in chunk {index}", hint=_DAMAGED)
        try:
            cipher.decrypt_into(_nonce(header, index), sealed, aad, part)
        except InvalidTag:
            raise BadModel(
                f"chunk {index} of {header.chunks} of the sealed file does not open",
                hint=_DAMAGED,
            ) from None
        yield part


def check_length(header: Header, nbytes: int) -> None:
    """Raises BadModel unless the whole sealed file has the size that its header asks for."""
    if nbytes != header.nbytes:
        raise BadModel(
            f"the sealed file has {nbytes} bytes instead of {header.nbytes}", hint=_DAMAGED
        )


def open_sealed(sealed: bytes | bytearray, data_key: bytes) -> bytearray:
    """The plain content of a whole sealed file. Raises BadModel."""
    header = parse_header(sealed)
    check_length(header, len(sealed))
    source = BytesIO(sealed)
    source.seek(HEADER_BYTES)
    plain = bytearray()
    for piece in opened_pieces(source.readinto, header, data_key):
        plain += piece
    return plain


def new_data_key() -> bytes:
    """32 fresh random bytes: one key seals one file."""
    return os.urandom(KEY_BYTES)


def open_master_key(folder: Path) -> bytes:
    """The gateway's master key in this directory (0700), made there at the first call.

    Raises Denied when others may read it or it has another size, Unavailable.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / MASTER_FILE
    if not path.exists():
        write_atomically(path, os.urandom(KEY_BYTES), mode=0o600)
    return read_master_key(path)


def read_master_key(path: Path) -> bytes:
    """An existing master key. Raises Denied, Unavailable."""
    key = read_secret(path)
    if len(key) != KEY_BYTES:
        raise Denied(f"{path} has {len(key)} bytes, a master key has {KEY_BYTES}")
    return key


def algorithm_for(*, has_aes: bool) -> Algorithm:
    """ChaCha20 where a processor that has to open the file would do AES in software."""
    return "aes-256-gcm" if has_aes else "chacha20-poly1305"


def sha256_hex(data: Buffer) -> str:
    """The hash by which plain content is known."""
    return hashlib.sha256(data).hexdigest()


def _nonce(header: Header, index: int) -> bytes:
    return header.nonce_prefix + index.to_bytes(8, "little")


def _last_bytes(header: Header) -> int:
    return (header.plain_nbytes - 1) % CHUNK_BYTES + 1


def _check_size(nbytes: int) -> None:
    if nbytes < 1:
        raise BadModel("an empty file cannot be sealed", hint="register a model with content")
    if nbytes > PLAIN_BYTES_MAX:
        raise TooLarge(f"{nbytes} bytes cannot be sealed", hint=f"at most {PLAIN_BYTES_MAX}")
