"""What the child opens into memory, and what it refuses."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from din.domain.model import Artifact, Slice
from din.errors import BadModel, Denied, DinError, Unavailable, UsageError
from din.trust.grants import grant_for_machine
from din.unseal.opening import SEALS, trusted_in, unseal
from din.wire.statement import statement_of
from din.wire.unseal import Unseal
from tests.vault_files import Home, slice_of

PLAIN = os.urandom(1_500_000)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Case:
    """One order on one node, to be spoilt."""

    def __init__(self, folder: Path, *, is_sealed: bool) -> None:
        self.home = Home(folder / "gateway")
        self.trust = folder / "node"
        public_key = self.home.enrol(self.trust)
        self.file = folder / "slice"
        data, grant = PLAIN, b""
        self.artifact = Artifact(hashlib.sha256(PLAIN).hexdigest(), len(PLAIN))
        if is_sealed:
            data, self.artifact = self.home.seal(PLAIN)
            grant = self.home.grant(data, public_key)
        self.file.write_bytes(data)
        self.part = slice_of(self.artifact)
        self.order = self.ordered(self.part, grant)

    def ordered(self, part: Slice, grant: bytes = b"") -> Unseal:
        statement = statement_of("m", part, {})
        return Unseal(
            ticket=1,
            statement=statement.decode(),
            signature=self.home.signing.sign(statement),
            grant=grant,
            artifact=0,
            path=str(self.file),
        )

    def opened(self) -> int:
        return unseal(self.order, trusted_in(self.trust))

    def content(self) -> bytes:
        descriptor = self.opened()
        try:
            return os.pread(descriptor, len(PLAIN) + 1, 0)
        finally:
            os.close(descriptor)

    def refusal(self, kind: type[DinError], says: str) -> None:
        before = open_files()
        with pytest.raises(kind, match=says):
            self.opened()
        assert open_files() == before


@pytest.fixture(params=["sealed", "plain"])
def case(tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    return Case(tmp_path, is_sealed=request.param == "sealed")


@pytest.fixture
def sealed(tmp_path: Path) -> Case:
    return Case(tmp_path, is_sealed=True)


def test_a_signed_slice_is_opened_into_memory_that_nobody_can_change(case: Case) -> None:
    descriptor = case.opened()
    try:
        assert os.pread(descriptor, len(PLAIN) + 1, 0) == PLAIN
        assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 1)
        assert "memfd:din-slice" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
    finally:
        os.close(descriptor)


def test_a_tampered_file_is_refused(case: Case) -> None:
    data = bytearray(case.file.read_bytes())
    data[-5] ^= 1
    case.file.write_bytes(data)
    case.refusal(BadModel, "does not open|not the one that was signed")


def test_a_file_of_another_size_is_refused(case: Case) -> None:
    case.file.write_bytes(case.file.read_bytes()[:-1])
    case.refusal(BadModel, "were signed")


def test_a_swapped_file_is_refused(case: Case) -> None:
    other, _ = case.home.seal(PLAIN[::-1])
    case.file.write_bytes(other if case.artifact.is_sealed else PLAIN[::-1])
    case.refusal(DinError, "another content|not the one that was signed")


def test_a_link_or_a_missing_file_is_refused(case: Case, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    case.file.rename(moved)
    case.refusal(Unavailable, "cannot be opened")
    case.file.symlink_to(moved)
    case.refusal(Unavailable, "cannot be opened")


SPOILT: dict[str, Callable[[Case], Unseal]] = {
    "swapped slice": lambda case: replace(
        case.ordered(replace(case.part, slice_id="ab" * 32)), signature=case.order.signature
    ),
    "other file": lambda case: replace(
        case.ordered(slice_of(replace(case.artifact, sha256="ab" * 32))),
        signature=case.order.signature,
    ),
    "foreign signature": lambda case: replace(
        case.order,
        signature=Home(case.trust.parent / "foreign").sign(case.part),
    ),
    "no signature": lambda case: replace(case.order, signature=b""),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_the_gateway_did_not_sign_is_refused(case: Case, what: str) -> None:
    case.order = SPOILT[what](case)
    case.refusal(Denied, "signed")


def test_the_signature_is_checked_before_the_file_is_touched(case: Case) -> None:
    case.file.unlink()
    case.order = replace(case.order, signature=bytes(64))
    case.refusal(Denied, "not signed")


def test_a_slice_without_a_file_is_only_verified(tmp_path: Path) -> None:
    case = Case(tmp_path, is_sealed=False)
    case.order = replace(case.ordered(slice_of()), artifact=-1)
    assert case.opened() == -1
    case.order = replace(case.order, artifact=0)
    case.refusal(BadModel, "0 files")


def test_a_grant_for_another_node_or_none_is_refused(sealed: Case) -> None:
    stranger = sealed.home.enrol(sealed.trust.parent / "stranger")
    for grant in (sealed.home.grant(sealed.file.read_bytes(), stranger), b""):
        sealed.order = replace(sealed.order, grant=grant)
        sealed.refusal(Denied, "another node|no key")


def test_a_node_that_never_joined_opens_its_own_users_slices(sealed: Case) -> None:
    sealed.trust = sealed.trust.parent / "none"
    sealed.order = replace(
        sealed.order,
        signature=b"",
        grant=grant_for_machine(sealed.home.folder / "sealing.key"),
    )
    assert sealed.content() == PLAIN


def test_a_trust_folder_that_lies_or_lacks_is_named(case: Case) -> None:
    cluster = case.trust / "cluster.json"
    cluster.write_text('{"cluster": "c"}')
    case.refusal(UsageError, "is no ed25519 key")
    cluster.write_text("{")
    case.refusal(Unavailable, "cluster.json cannot be read")


def test_a_node_key_that_others_may_read_is_refused(case: Case) -> None:
    (case.trust / "node.key").chmod(0o644)
    case.refusal(Denied, "mode 0644")
