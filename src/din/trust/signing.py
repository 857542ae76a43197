"""The gateway's ed25519 key: what it says of a slice is signed, and nodes believe nothing else.

The public half reaches a node at its join, over a connection that its token vouches for.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from din.errors import Denied, UsageError
from din.system.identity import write_atomically
from din.trust.authority import read_secret

KEY_FILE: Final = "signing.key"
PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
CONTEXT: Final = b"DIN slice 1\0"
"""Before every statement, so that a signature made for another purpose never fits here."""


class SigningKey:
    """Signs statements. Made by `open_signing_key`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_text = public_text(key.public_key().public_bytes_raw())
        """What nodes keep as `signing_key`: base64url without padding, 43 characters."""

    def sign(self, statement: bytes) -> bytes:
        """The 64-byte signature over context and statement."""
        return self._key.sign(CONTEXT + statement)


def open_signing_key(folder: Path) -> SigningKey:
    """The key in this directory (0700), made there at the first call.

    Raises Denied when others may read it, UsageError when it is no such key, Unavailable.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / KEY_FILE
    if not path.exists():
        pem = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        write_atomically(path, pem, mode=0o600)
    try:
        key = serialization.load_pem_private_key(read_secret(path), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            f"{path} holds no ed25519 key",
            hint="put it back from a backup; a new one makes every node join again",
        )
    return SigningKey(key)


def check_signature(signing_key: str, statement: bytes, signature: bytes) -> None:
    """Raises Denied unless the owner of this public key signed this statement, UsageError when the
    public key is none."""
    try:
        key = Ed25519PublicKey.from_public_bytes(_public_bytes(signing_key))
    except ValueError:
        raise UsageError(
            f"the gateway's signing key {signing_key!r:.60} is no ed25519 key",
            hint="join the cluster anew: din node join -",
        ) from None
    if not signature:
        raise Denied("the slice is not signed", hint="update the gateway")
    try:
        key.verify(signature, CONTEXT + statement)
    except InvalidSignature:
        raise Denied(
            "what was said of the slice is not signed by this cluster's gateway",
            hint="if the gateway lost its signing key, this node has to join again",
        ) from None


def public_text(raw: bytes) -> str:
    """A public key as text: base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _public_bytes(text: str) -> bytes:
    """Raises ValueError."""
    try:
        raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, UnicodeError) as error:
        raise ValueError from error
    if len(raw) != PUBLIC_KEY_BYTES:
        raise ValueError
    return raw
