"""TLS 1.3 between machines of one cluster: contexts, and whom a connection speaks with.

The chain up to the cluster's authority decides whether a certificate counts, its name decides who
it is (docs/decisions/0009). Host names are not checked: an address is no identity here.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from din.domain.trust import PeerName, Role, parse_peer_name
from din.errors import Denied, Unavailable

NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name."""


class TlsFiles(Struct, frozen=True):
    """Where a machine keeps what proves its name."""

    authority: Path
    certificate: Path
    key: Path


def files_in(folder: Path, role: Role) -> TlsFiles:
    """The files of a state directory's `trust` folder."""
    return TlsFiles(folder / "ca.pem", folder / f"{role}.pem", folder / f"{role}.key")


def server_context(
    files: TlsFiles, *, is_certificate_required: bool, is_lapsed_heard: bool = False
) -> ssl.SSLContext:
    """For listeners. Without a required certificate, one that is shown must still be ours.

    With `is_lapsed_heard` a machine may still prove its key with a certificate that has ended, and
    whoever takes its name must ask `certificate_end_ms`. Raises Unavailable when a file is missing
    or broken.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    if is_lapsed_heard:
        context.verify_flags |= NO_CHECK_TIME
    context.verify_mode = ssl.CERT_REQUIRED if is_certificate_required else ssl.CERT_OPTIONAL
    # Tickets would let a revoked certificate come back without being shown.
    context.num_tickets = 0
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For dialling as this machine. Raises Unavailable when a file is missing or broken."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def pinned_context(authority_pem: str) -> ssl.SSLContext:
    """For those who know the authority and have no certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority_pem)
    return context


def unverified_context() -> ssl.SSLContext:
    """For fetching what is compared with a hash afterwards, and for nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def take_new_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Use the files as they are now for connections to come; open ones stay as they are. Raises
    Unavailable when they cannot be used, and the context is as before."""
    _context(ssl.PROTOCOL_TLS_CLIENT, files)
    context.load_cert_chain(str(files.certificate), str(files.key))


def peer_name(connection: ssl.SSLObject | ssl.SSLSocket) -> PeerName | None:
    """Whom the verified certificate of the other side names; None when it showed none.

    Raises Denied when the name is none of DIN's.
    """
    shown: dict[str, Any] | None = connection.getpeercert()
    if not shown:
        return None
    uris = [value for kind, value in shown.get("subjectAltName", ()) if kind == "URI"]
    if len(uris) != 1:
        raise Denied(f"the certificate names {len(uris)} machines instead of one")
    return parse_peer_name(uris[0], str(shown.get("serialNumber", "")))


def certificate_end_ms(connection: ssl.SSLObject, now_ms: int) -> int:
    """When the certificate of the other side ends, milliseconds since 1970. Raises Denied when it
    has not begun, or when there is none."""
    shown: dict[str, Any] = connection.getpeercert() or {}
    try:
        begins_s = ssl.cert_time_to_seconds(shown["notBefore"])
        ends_s = ssl.cert_time_to_seconds(shown["notAfter"])
    except (KeyError, ValueError):
        raise Denied("the certificate does not say how long it lasts") from None
    if now_ms < begins_s * 1000:
        raise Denied(
            f"the certificate begins at {shown['notBefore']}, later than it is here",
            hint="set the clocks of both machines: timedatectl set-ntp true",
        )
    return ends_s * 1000


def check_peer(name: PeerName | None, cluster: str, role: Role, target_id: str = "") -> PeerName:
    """The name, when it is one of this cluster with this role, and this id where one is given.

    Raises Denied saying who answered instead.
    """
    wanted = f"{role} {target_id or 'of any id'} of cluster {cluster!r}"
    if name is None:
        raise Denied(f"no certificate was shown, wanted {wanted}")
    if (name.cluster, name.role) != (cluster, role) or target_id not in ("", name.id):
        raise Denied(f"{name.uri} answered instead of {wanted}")
    return name


def _context(protocol: ssl._SSLMethod, files: TlsFiles) -> ssl.SSLContext:  # pyright: ignore[reportPrivateUsage]
    context = ssl.SSLContext(protocol)
    _harden(context)
    for path in (files.authority, files.certificate, files.key):
        if not path.is_file():
            raise Unavailable(f"{path} is missing", hint="join the cluster: din node join -")
    try:
        context.load_verify_locations(cafile=str(files.authority))
        context.load_cert_chain(str(files.certificate), str(files.key))
    except (ssl.SSLError, OSError) as error:
        raise Unavailable(
            f"{files.certificate} cannot be used: {error.strerror or type(error).__name__}",
            hint="join the cluster anew: din node join -",
        ) from None
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION
    # Earlier releases of Python 3.11 set it: a connection that a stranger cut would look like one
    # that ended.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    context.verify_flags |= ssl.VERIFY_X509_STRICT
