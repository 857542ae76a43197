"""Keys of machines and what they ask the authority for."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from din.errors import Denied, UsageError

REQUEST_BYTES_MAX = 4096


def new_key_pem() -> bytes:
    """A fresh P-256 key, unencrypted PKCS 8: its file must be 0600."""
    return pem_of_key(ec.generate_private_key(ec.SECP256R1()))


def pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Unencrypted PKCS 8."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """A P-256 key. Raises UsageError for anything else; its text never holds the key."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError("the private key cannot be read", hint="join the cluster anew") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError("the private key is not on P-256", hint="join the cluster anew")
    return key


def signing_request(key_pem: bytes) -> bytes:
    """A request for a certificate, PEM. It proves the key and names nothing: the authority decides
    the name."""
    key = load_key(key_pem)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "din")])
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM)


def public_key_of_request(pem: bytes) -> ec.EllipticCurvePublicKey:
    """The P-256 key that signed the request. Raises UsageError or Denied."""
    if len(pem) > REQUEST_BYTES_MAX:
        raise UsageError(f"the signing request has {len(pem)} bytes, over {REQUEST_BYTES_MAX}")
    try:
        request = x509.load_pem_x509_csr(pem)
        key = request.public_key()
        is_proven = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        raise UsageError("the signing request cannot be read", hint="send PKCS 10 as PEM") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError("the signing request holds no P-256 key", hint="make the key on P-256")
    if not is_proven:
        raise Denied("the signing request is not signed by the key that it holds")
    return key


def check_issued(pem: bytes, key_pem: bytes, authority_pem: bytes) -> None:
    """Raises Denied unless a certificate is of this authority and for this key."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_pem))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise Denied("what came as a certificate is none of the cluster's authority") from None
    if certificate.public_key() != load_key(key_pem).public_key():
        raise Denied("the certificate that came is for another key than this machine's")


def key_digest(key: ec.EllipticCurvePublicKey) -> str:
    """SHA256 of the public key's DER form, hex: what a node id is bound to."""
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    return digest.finalize().hex()


def public_key_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """DER, as it is kept beside a node's id."""
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def load_public_key(der: bytes) -> ec.EllipticCurvePublicKey:
    """A P-256 key from its DER form. Raises UsageError."""
    try:
        key = serialization.load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError("the node's public key cannot be read", hint="join it anew") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError("the node's public key is not on P-256", hint="join it anew")
    return key
