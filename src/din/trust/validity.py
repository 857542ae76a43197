"""How long a certificate on disk is good for. For people who look; connections check it anew."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from din.errors import Unavailable
from din.system.identity import disk_error


class Validity(NamedTuple):
    """From and until when, in UTC."""

    begins: datetime
    ends: datetime


def validity_of(path: Path) -> Validity:
    """Of the certificate in a PEM file. Raises Unavailable or Denied when it cannot be read."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise disk_error(path, error) from error
    except ValueError:
        raise Unavailable(f"{path} is no certificate", hint="put it back from a backup") from None
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)
