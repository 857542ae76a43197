"""Servers behind nodes as the gateway knows them, and models of theirs as versions."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from din.domain.foreign import ForeignModel, ForeignServer, backends_of, trouble_with
from din.domain.model import GATEWAY, Slice
from din.domain.node import NodeId
from din.domain.strategy import SliceSetting, Strategy
from din.domain.tensor import TensorSpec
from din.domain.views import RegisterModel
from din.errors import Conflict, NotFound, UsageError
from din.gateway.deployment.foreign_book import NODES_MAX, ForeignBook
from din.gateway.registration.foreign import carved_foreign, check_file
from din.gateway.registration.record import check_order, sources_of
from din.wire.messages import Foreign

A, B = NodeId("a" * 16), NodeId("b" * 16)
SPEC = TensorSpec("x", "FP32", (None, 3))
MODEL = ForeignModel("m", (SPEC,), (replace(SPEC, name="y"),))
SERVER = ForeignServer("http://127.0.0.1:8000", "triton", "2.60", (MODEL,))
NODES = ((A, "one"), (B, "two"))


def book(**said: tuple[ForeignServer, ...]) -> ForeignBook:
    made = ForeignBook()
    for name, servers in said.items():
        made.heard({"a": A, "b": B}[name], Foreign(servers))
    return made


def test_what_a_node_says_replaces_what_it_said() -> None:
    found = ForeignBook()
    assert found.heard(A, Foreign((SERVER,)))
    assert not found.heard(A, Foreign((SERVER,)))
    assert found.servers(A) == (SERVER,)
    assert found.heard(A, Foreign(()))
    assert found.servers(A) == ()


def test_a_book_is_bounded() -> None:
    found = ForeignBook()
    for number in range(NODES_MAX + 1):
        found.heard(NodeId(f"{number:016x}"), Foreign((SERVER,)))
    assert found.servers(NodeId(f"{0:016x}")) == ()
    assert found.servers(NodeId(f"{NODES_MAX:016x}")) == (SERVER,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": ()},
        {"outputs": ()},
        {"inputs": (replace(SPEC, dtype="STRING"),)},
        {"inputs": (replace(SPEC, name="a\x1b[2J"),)},
        {"inputs": (replace(SPEC, shape=(-1,)),)},
        {"inputs": (replace(SPEC, shape=(1,) * 17),)},
        {"inputs": (SPEC,) * 300},
    ],
)
def test_a_signature_that_cannot_be_is_no_model(wrong: dict[str, Any]) -> None:
    found = book(a=(replace(SERVER, models=(replace(MODEL, **wrong),)),))
    assert backends_of(found.servers(A)) == ()
    assert "no signature" in found.servers(A)[0].models[0].reason


def test_words_of_a_node_cannot_steer_a_terminal() -> None:
    told = replace(SERVER, url="http://\x1b[2J", reason="gone\n\x07", models=())
    (server,) = book(a=(told,)).servers(A)
    assert (server.url + server.reason).isprintable()
    named = book(a=(replace(SERVER, models=(replace(MODEL, name="m\x1b"),)),))
    assert named.servers(A)[0].models == ()


def test_a_slice_stays_as_long_as_a_server_runs_its_model() -> None:
    part = Slice(index=0, slice_id="0" * 64, name="s", inputs=(), outputs=(), backend="oip:m")
    found = book(a=(SERVER,))
    assert found.may_hold(A, [part])
    assert not found.may_hold(B, [part])
    assert found.may_hold(B, [replace(part, backend="onnxruntime")])
    found.heard(A, Foreign((replace(SERVER, reason="gone"),)))
    assert not found.may_hold(A, [part])
    assert trouble_with("m", found.servers(A)) == "http://127.0.0.1:8000: gone"


def test_a_signature_is_that_of_all_servers_that_are_meant() -> None:
    other = replace(MODEL, inputs=(replace(SPEC, dtype="FP64"),))
    found = book(a=(SERVER,), b=(replace(SERVER, models=(other,)),))
    assert found.signature("m", NODES[:1]) == MODEL
    with pytest.raises(Conflict, match=r"another one at http://127\.0\.0\.1:8000 of node two"):
        found.signature("m", NODES)
    with pytest.raises(NotFound, match="no server behind a node has a model 'k'") as caught:
        found.signature("k", NODES)
    assert "their models are m" in caught.value.hint
    one = book(a=(SERVER,))
    with pytest.raises(NotFound, match="no server behind node two has a model 'm'") as caught:
        one.signature("m", NODES[1:])
    assert "--foreign m" in caught.value.hint
    down = book(a=(replace(SERVER, reason="Connection refused"),))
    with pytest.raises(NotFound, match="Connection refused"):
        down.signature("m", NODES)
    with pytest.raises(NotFound) as caught:
        ForeignBook().signature("m", NODES)
    assert "--foreign" in caught.value.hint


def test_a_model_of_a_server_is_one_slice_without_a_file() -> None:
    order = RegisterModel(
        model_id="m",
        foreign="m@one",
        slicing_strategy=Strategy(slices=(SliceSetting(name="far", sensitive=True),)),
    )
    check_order(order)
    carved = carved_foreign(order, MODEL)
    (part,) = carved.slices
    assert (part.name, part.backend, part.nodes) == ("far", "oip:m", ("one",))
    assert part.is_sensitive
    assert part.artifacts == ()
    assert [(edge.producer, edge.consumers) for edge in carved.edges] == [
        (GATEWAY, (0,)),
        (0, (GATEWAY,)),
    ]
    assert sources_of(order) == set()
    other = carved_foreign(order, replace(MODEL, inputs=(replace(SPEC, dtype="INT8"),)))
    assert other.slices[0].slice_id != part.slice_id


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "neither source_sha256 nor foreign"),
        ({"foreign": "m", "source_sha256": "0" * 64}, "source_sha256 is given"),
        ({"foreign": "m", "inputs": {"x": (1,)}}, "inputs is given"),
        ({"foreign": "m", "encrypt": True}, "encrypt is given"),
        ({"foreign": "m", "backend_options": {"threads": "1"}}, "backend_options is given"),
        ({"foreign": "@one"}, "foreign is '@one'"),
        (
            {"foreign": "m", "slicing_strategy": Strategy(partition_points=("a",))},
            "a slicing strategy is given",
        ),
        ({"foreign": "m", "slicing_strategy": Strategy(type="auto")}, "a slicing strategy"),
    ],
)
def test_what_only_a_file_can_have_is_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_order(RegisterModel(model_id="m", **words))


def test_what_needs_a_file_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="model 'm' cannot be profiled"):
        check_file(RegisterModel(model_id="m", foreign="m"), (), "profiled")
    with pytest.raises(UsageError, match=r"slices\[0\].backend is 'onnxruntime'"):
        carved_foreign(
            RegisterModel(
                model_id="m",
                foreign="m",
                slicing_strategy=Strategy(slices=(SliceSetting(backend="onnxruntime"),)),
            ),
            MODEL,
        )
