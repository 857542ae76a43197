"""The authority of one cluster: a P-256 key on disk that says which key is which machine.

It knows nothing of tokens, of who may join or of what was revoked: whoever calls `issue` decided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from din.domain.trust import PeerName
from din.errors import Denied, Unavailable
from din.system.identity import disk_error, write_atomically
from din.trust.requests import load_key, new_key_pem

AUTHORITY_LIFE: Final = timedelta(days=3650)
CERTIFICATE_LIFE: Final = timedelta(hours=24)
SKEW: Final = timedelta(minutes=10)
"""Certificates begin so much earlier: clocks of small boards differ."""
CERTIFICATE_FILE: Final = "ca.pem"
KEY_FILE: Final = "ca.key"


class Authority:
    """Issues certificates. Made by `open_authority`."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.sha256 = authority_digest(certificate)

    def issue(
        self,
        key: ec.EllipticCurvePublicKey,
        name: PeerName,
        now: datetime,
        life: timedelta = CERTIFICATE_LIFE,
        hosts: Sequence[str] = (),
    ) -> bytes:
        """A certificate that binds this key to this name until `now + life`, PEM. `hosts` are
        addresses and host names for programs that look for those, as curl does; DIN does not."""
        names = [x509.UniformResourceIdentifier(name.uri), *(_host(each) for each in hosts)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_named(f"{name.role} {name.id}"))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def open_authority(folder: Path, cluster: str, now: datetime) -> Authority:
    """The authority in this directory (0700), made there at the first call.

    Raises Denied when its key may be read by others or does not belong to its certificate,
    Unavailable when the files cannot be read or written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key_path, path = folder / KEY_FILE, folder / CERTIFICATE_FILE
    if not path.exists():
        key_pem = new_key_pem()
        write_atomically(key_path, key_pem, mode=0o600)
        certificate = _self_signed(load_key(key_pem), cluster, now)
        write_atomically(path, certificate.public_bytes(serialization.Encoding.PEM))
    key = load_key(read_secret(key_path))
    certificate = _certificate_in(path)
    if certificate.public_key() != key.public_key():
        raise Denied(
            f"{key_path} is not the key of {path}",
            hint="put both back from one backup; a new authority makes every node join again",
        )
    return Authority(certificate, key)


def read_secret(path: Path) -> bytes:
    """A file that only its owner may read. Raises Denied when others may, Unavailable."""
    try:
        mode = path.stat().st_mode & 0o777
        raw = path.read_bytes()
    except OSError as error:
        raise disk_error(path, error) from error
    if mode & 0o077:
        raise Denied(
            f"{path} has mode {mode:04o}: others may read it",
            hint=f"chmod 600 {path}, and if somebody may have read it, make a new authority",
        )
    return raw


def kept_key(path: Path) -> bytes:
    """The key in this file, PEM; made there (0600) at the first call. Raises as `read_secret`."""
    if not path.exists():
        write_atomically(path, new_key_pem(), mode=0o600)
    return read_secret(path)


def authority_digest(certificate: x509.Certificate) -> str:
    """SHA256 of the DER form, hex: what a join token pins."""
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def _certificate_in(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise disk_error(path, error) from error
    except ValueError:
        raise Unavailable(f"{path} is no certificate", hint="put it back from a backup") from None


def _self_signed(key: ec.EllipticCurvePrivateKey, cluster: str, now: datetime) -> x509.Certificate:
    name = _named(f"DIN authority of {cluster}"[:64])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
