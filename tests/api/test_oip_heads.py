"""A JSON head that came before is not read again, and answers stay what they were."""

import msgspec
from api_harness import World, with_server

from din.api.oip_heads import HEAD_BYTES_MAX, HEADS_MAX, Heads, KnownHead
from din.api.oip_request import OipRequest


def head_of(size=8, **more):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
    tensor |= {"parameters": {"binary_data_size": size}} | more
    parameters = {"binary_data_output": True}
    return msgspec.json.encode({"inputs": [tensor], "parameters": parameters})


def in_turn(tmp_path, *posts):
    """The answers to posts (model, head, raw bytes), one after the other."""
    answers = []

    async def test(world: World):
        client = await world.client()
        for model, head, raw in posts:
            headers = {"inference-header-content-length": str(len(head))}
            path = f"/v2/models/{model}/infer"
            answers.append(await client.ask("POST", path, head + raw, headers))

    with_server(tmp_path, test)
    return answers


def split(answer):
    size = int(answer.headers["inference-header-content-length"])
    return msgspec.json.decode(answer.body[:size]), answer.body[size:]


def test_a_repeated_head_is_answered_with_the_bytes_of_each_request(tmp_path):
    raws = [bytes([number] * 8) for number in range(3)]
    answers = in_turn(tmp_path, *(("plain", head_of(), raw) for raw in raws))
    told = [split(answer) for answer in answers]
    assert [raw for _, raw in told] == raws
    assert told[0][0]["outputs"] == told[1][0]["outputs"] == told[2][0]["outputs"]
    assert told[2][0]["outputs"][0]["parameters"] == {"binary_data_size": 8}


def test_a_known_head_with_too_few_or_too_many_bytes_is_refused(tmp_path):
    posts = [("plain", head_of(), bytes(size)) for size in (8, 7, 9, 8)]
    answers = in_turn(tmp_path, *posts)
    assert [answer.status for answer in answers] == [200, 400, 400, 200]


def test_a_head_that_fits_one_model_is_still_held_against_another(tmp_path):
    posts = [(model, head_of(), bytes(8)) for model in ("plain", "faces", "echo-INT8", "plain")]
    answers = in_turn(tmp_path, *posts)
    assert [answer.status for answer in answers] == [200, 400, 400, 200]


def test_elements_of_bytes_are_checked_in_each_request(tmp_path):
    head = head_of(size=5, datatype="BYTES", shape=[1])
    good, bad = b"\x01\x00\x00\x00a", b"\x09\x00\x00\x00a"
    answers = in_turn(tmp_path, *(("echo-BYTES", head, raw) for raw in (good, good, bad)))
    assert [answer.status for answer in answers] == [200, 200, 400]


def test_heads_are_bounded_in_number_and_length():
    heads = Heads()
    known = KnownHead(OipRequest([]), ())
    for number in range(HEADS_MAX):
        heads.keep(b"%d" % number, known)
    assert heads.find(b"0") is known
    heads.keep(b"one more", known)
    heads.keep(bytes(HEAD_BYTES_MAX + 1), known)
    assert len(heads) == HEADS_MAX
    assert heads.find(b"0") is known
    assert heads.find(b"1") is None
