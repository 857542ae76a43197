"""The gateway's signature over what it says of a slice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from din.domain.model import AdapterSpec, Artifact, Slice
from din.domain.tensor import TensorSpec
from din.errors import BadModel, Denied, UsageError
from din.trust.signing import check_signature, open_signing_key
from din.wire.statement import read_statement, statement_of

FILE = Artifact("ab" * 32, 1000)
PART = Slice(
    index=0, slice_id="cd" * 32, name="whole", artifacts=(FILE,), opset=17, memory_mib=50,
    inputs=(TensorSpec("x", "FP32", (1, 4)),), outputs=(TensorSpec("y", "FP32", (1, 4)),),
)  # fmt: skip
OPTIONS = {"threads": "1"}
CHANGES = {
    "slice_id": "ef" * 32,
    "artifacts": (Artifact("12" * 32, 1000),),
    "backend": "other",
    "adapter": AdapterSpec("image", {"max_side": 9}),
    "opset": 18,
    "memory_mib": 1,
    "is_sensitive": True,
}


def test_the_signing_key_is_made_once_and_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "trust"
    first = open_signing_key(folder)
    assert open_signing_key(folder).public_text == first.public_text
    assert len(first.public_text) == 43
    assert (folder / "signing.key").stat().st_mode & 0o777 == 0o600
    (folder / "signing.key").chmod(0o640)
    with pytest.raises(Denied, match="mode 0640"):
        open_signing_key(folder)


def test_a_file_that_is_no_signing_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    path.touch(mode=0o600)
    path.write_text("not so secret")
    with pytest.raises(UsageError, match="no ed25519 key") as caught:
        open_signing_key(tmp_path)
    assert "secret" not in str(caught.value)


def test_what_the_gateway_signed_is_believed(tmp_path: Path) -> None:
    key = open_signing_key(tmp_path)
    statement = statement_of("m", PART, OPTIONS)
    check_signature(key.public_text, statement, key.sign(statement))
    assert read_statement(statement).artifacts == (FILE,)


def test_the_statement_does_not_depend_on_order_position_or_name() -> None:
    options = {"a": "1", "b": "2"}
    turned = dict(reversed(options.items()))
    moved = msgspec.structs.replace(PART, index=3, name="other", labels={"site": "a"})
    assert statement_of("m", PART, options) == statement_of("m", moved, turned)


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_fact_breaks_the_signature(tmp_path: Path, field: str) -> None:
    key = open_signing_key(tmp_path)
    signature = key.sign(statement_of("m", PART, OPTIONS))
    changed = msgspec.structs.replace(PART, **{field: CHANGES[field]})
    with pytest.raises(Denied, match="not signed by this cluster's gateway"):
        check_signature(key.public_text, statement_of("m", changed, OPTIONS), signature)


def test_changed_options_or_model_break_the_signature(tmp_path: Path) -> None:
    key = open_signing_key(tmp_path)
    signature = key.sign(statement_of("m", PART, OPTIONS))
    for statement in (statement_of("m", PART, {}), statement_of("n", PART, OPTIONS)):
        with pytest.raises(Denied):
            check_signature(key.public_text, statement, signature)


def test_a_foreign_or_missing_signature_is_refused(tmp_path: Path) -> None:
    key, foreign = open_signing_key(tmp_path / "a"), open_signing_key(tmp_path / "b")
    statement = statement_of("m", PART, OPTIONS)
    for signature in (foreign.sign(statement), b"", b"short", bytes(64)):
        with pytest.raises(Denied, match="signed"):
            check_signature(key.public_text, statement, signature)


@pytest.mark.parametrize("text", ["", "!", "a" * 42, "ä" * 43, "A" * 44])
def test_a_public_key_that_is_none_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="is no ed25519 key"):
        check_signature(text, b"{}", bytes(64))


def test_a_statement_of_another_version_is_refused() -> None:
    statement = msgspec.json.decode(statement_of("m", PART, OPTIONS))
    with pytest.raises(BadModel, match="version 2"):
        read_statement(msgspec.json.encode({**statement, "version": 2}))
    with pytest.raises(BadModel, match="cannot be read"):
        read_statement(b"[]")
