"""Having models looked at over HTTP."""

import json

import pytest
from api_harness import World, asked_in_turn, with_server

from din.api.limits import FrontLimits
from din.domain.profile import Verification

PATH = "/api/v1/models/faces"


def test_an_order_reaches_the_examination_with_its_version(tmp_path):
    (profile, verify), world = asked_in_turn(
        tmp_path,
        ("POST", f"{PATH}/profile?version=1", b'{"node": "edge-1", "rounds": 3}'),
        ("POST", f"{PATH}/verify"),
    )
    assert (profile.status, profile.json()["schema"]) == (200, "din.profile/1")
    assert (verify.status, verify.json()["schema"]) == (200, "din.verification/1")
    (first, second) = world.examination.asked
    assert (first[0], first[1], first[2].node, first[2].rounds) == ("faces", "1", "edge-1", 3)
    assert (second[0], second[1], second[2].seed) == ("faces", None, 0)


def test_slices_that_differ_are_an_answer_and_no_error(tmp_path):
    async def test(world: World):
        world.examination.found = Verification(state="wrong", summary="they differ")
        answer = await (await world.client()).ask("POST", f"{PATH}/verify", b"{}")
        assert (answer.status, answer.json()["verification"]["state"]) == (200, "wrong")

    with_server(tmp_path, test)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "the order to verify"),
        (b'{"seeds": 1}', "seeds"),
        (b'{"seed": -1}', "seed"),
        (b'{"timeout_ms": 1}', "timeout_ms"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": "!"}]}', "data"),
    ],
)
def test_an_order_that_makes_no_sense_is_a_400_that_names_it(tmp_path, body, word):
    (answer,), world = asked_in_turn(tmp_path, ("POST", f"{PATH}/verify", body))
    assert answer.status == 400
    assert word in json.dumps(answer.json()["error"])
    assert world.examination.asked == []


def test_models_that_are_not_there_and_bodies_that_are_too_large_are_refused(tmp_path):
    limits = FrontLimits(probe_body_bytes_max=10)
    (missing, large), world = asked_in_turn(
        tmp_path,
        ("POST", "/api/v1/models/nothing/verify", b"{}"),
        ("POST", f"{PATH}/profile", b" " * 11),
        limits=limits,
    )
    assert (missing.status, large.status) == (404, 413)
    assert world.examination.asked == []
