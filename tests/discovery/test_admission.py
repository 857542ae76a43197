"""What the gateway answers to a registration."""

import msgspec
from members import NODE_A, NODE_B, profile

from din.discovery.admission import Terms, admit
from din.discovery.membership import Membership
from din.wire.registration import (
    WARNING_BYTES_MAX,
    Admission,
    Refusal,
    Registration,
    decode_answer,
    encode_answer,
)

TERMS = Terms(cluster="factory", gateway_id="9d8c7b6a5f4e3d2c", links=("tcp:10.0.0.1:8002",))


def ask(membership: Membership, cluster: str = "factory", terms: Terms = TERMS, **more):
    registration = Registration(cluster=cluster, profile=profile(**more))
    answer, orders = admit(membership, 0, registration, terms)
    assert decode_answer(encode_answer(answer)) == answer
    return answer, orders


def test_a_node_is_told_its_name_links_and_beat() -> None:
    answer, orders = ask(Membership())
    assert answer == Admission(
        name="edge",
        gateway_id="9d8c7b6a5f4e3d2c",
        heartbeat_interval_ms=3000,
        heartbeat_jitter_ms=450,
        links=("tcp:10.0.0.1:8002",),
        protocol_version=1,
    )
    assert len(orders) == 1


def test_the_second_node_of_a_name_is_warned() -> None:
    """T08."""
    membership = Membership()
    ask(membership, node_id=NODE_A)
    answer, _ = ask(membership, node_id=NODE_B)
    assert isinstance(answer, Admission)
    assert answer.name == "edge-0000"
    assert "taken by node" in answer.warnings[0]


def test_another_cluster_is_refused_with_both_names() -> None:
    membership = Membership()
    answer, orders = ask(membership, cluster="office")
    assert isinstance(answer, Refusal)
    assert "'factory'" in answer.reason
    assert "'office'" in answer.reason
    assert orders == ()
    assert membership.count() == 0


def test_no_common_version_names_both_sides() -> None:
    terms = msgspec.structs.replace(TERMS, protocol_versions=(2, 3))
    answer, _ = ask(Membership(), terms=terms, protocol_versions=(1,))
    assert isinstance(answer, Refusal)
    assert "the node speaks 1, the gateway 2, 3" in answer.reason


def test_an_older_session_gets_a_refusal() -> None:
    membership = Membership()
    ask(membership, session=2)
    answer, _ = ask(membership, session=1)
    assert isinstance(answer, Refusal)
    assert "session 1" in answer.reason


def test_long_warnings_are_cut_to_their_limit() -> None:
    terms = msgspec.structs.replace(TERMS, warnings=("\u00e4" * 400,) * 9)
    answer, _ = ask(Membership(), terms=terms)
    assert isinstance(answer, Admission)
    assert all(len(each.encode()) <= WARNING_BYTES_MAX for each in answer.warnings)
