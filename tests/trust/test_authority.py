"""The authority on disk and the certificates it issues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from din.domain.trust import PeerName
from din.errors import Denied, UsageError
from din.trust.authority import open_authority
from din.trust.requests import (
    check_issued,
    new_key_pem,
    public_key_of_request,
    signing_request,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NODE = PeerName("plant", "node", "00112233aabbccdd")


def test_the_authority_is_made_once_and_its_key_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "trust"
    first = open_authority(folder, "plant", NOW)
    assert open_authority(folder, "plant", NOW).sha256 == first.sha256
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    open_authority(tmp_path, "plant", NOW)
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(Denied, match="mode 0644"):
        open_authority(tmp_path, "plant", NOW)


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    open_authority(tmp_path, "plant", NOW)
    (tmp_path / "ca.key").write_bytes(new_key_pem())
    with pytest.raises(Denied, match="is not the key of"):
        open_authority(tmp_path, "plant", NOW)


def test_a_certificate_binds_the_key_of_the_request_to_the_name(tmp_path: Path) -> None:
    authority = open_authority(tmp_path, "plant", NOW)
    key = public_key_of_request(signing_request(new_key_pem()))
    found = x509.load_pem_x509_certificate(authority.issue(key, NODE, NOW))
    assert found.public_key() == key
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [NODE.uri]
    assert found.not_valid_after_utc == NOW + timedelta(hours=24)
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.pem))


@pytest.mark.parametrize("junk", [b"", b"x" * 5000, b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA"])
def test_a_broken_request_is_named(junk: bytes) -> None:
    with pytest.raises(UsageError, match="signing request"):
        public_key_of_request(junk)


def test_hosts_are_named_beside_the_machine(tmp_path: Path) -> None:
    authority = open_authority(tmp_path, "plant", NOW)
    key = public_key_of_request(signing_request(new_key_pem()))
    hosts = ("10.99.0.1", "fd00::1", "gateway-7")
    found = x509.load_pem_x509_certificate(authority.issue(key, NODE, NOW, hosts=hosts))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [NODE.uri]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == list(hosts[:2])
    assert names.get_values_for_type(x509.DNSName) == ["gateway-7"]


def test_what_comes_as_a_certificate_is_of_the_authority_and_for_the_own_key(
    tmp_path: Path,
) -> None:
    now = datetime.now(UTC)
    ours = open_authority(tmp_path / "ours", "plant", now)
    other = open_authority(tmp_path / "other", "plant", now)
    key = new_key_pem()
    public = public_key_of_request(signing_request(key))
    name = PeerName("plant", "node", "00112233aabbccdd")
    issued = ours.issue(public, name, now)
    check_issued(issued, key, ours.pem)
    with pytest.raises(Denied, match="for another key"):
        check_issued(issued, new_key_pem(), ours.pem)
    for wrong in (other.issue(public, name, now), other.pem, b"", b"nonsense"):
        with pytest.raises(Denied, match="none of the cluster's authority"):
            check_issued(wrong, key, ours.pem)
