"""Names in certificates and what callers may do."""

from __future__ import annotations

import msgspec
import pytest

from din.domain.enrolment import JoinOrder
from din.domain.trust import Caller, PeerName, parse_peer_name
from din.errors import Denied

NODE = "spiffe://din/plant-2/node/00112233aabbccdd"


def test_a_name_is_read_as_it_is_written() -> None:
    name = parse_peer_name(NODE, "0A")
    assert name == PeerName("plant-2", "node", "00112233aabbccdd", "0A")
    assert name.uri == NODE


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://other/plant-2/node/00112233aabbccdd",
        "spiffe://din/plant-2/admin/00112233aabbccdd",
        "spiffe://din/plant-2/node/00112233AABBCCDD",
        "spiffe://din/plant-2/node/00112233aabbccdd/gateway",
        "spiffe://din/-x/node/00112233aabbccdd",
        NODE + "\n",
        NODE + "x" * 200,
    ],
)
def test_any_other_text_names_nobody(uri: str) -> None:
    with pytest.raises(Denied, match="no machine of DIN"):
        parse_peer_name(uri)


def test_admin_holds_every_scope_and_others_only_their_own() -> None:
    assert Caller(kind="key", scopes=frozenset({"admin"})).may("models:write")
    infer_only = Caller(kind="key", scopes=frozenset({"infer"}))
    assert infer_only.may("infer")
    assert not infer_only.may("models:write")
    assert not Caller(kind="stranger").may("infer")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("node_id", "00000000000000aa\n"),
        ("token_id", "0000000a\n"),
        ("secret", "A" * 22 + "\n"),
        ("name", "edge\n"),
        ("name", "\x1b[2J"),
        ("name", "../edge"),
    ],
)
def test_what_joins_says_ids_and_names_and_nothing_around_them(field: str, text: str) -> None:
    order = {"token_id": "0000000a", "secret": "A" * 22, "request": "", "node_id": "0" * 16}
    assert msgspec.convert(order, JoinOrder).name == ""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**order, field: text}, JoinOrder)
