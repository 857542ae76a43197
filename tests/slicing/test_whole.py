"""Files that run whole: what is read of them, and that damaged ones end in words."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from din.domain.forms import form_of, runs_whole
from din.domain.model import CarveAnswer, CarveRequest
from din.domain.strategy import SliceSetting, Strategy
from din.domain.tensor import TensorSpec
from din.errors import BadModel, BadStrategy, TooLarge, UsageError
from din.slicing.whole import form_in, take_whole
from tests import tflite_models
from tests.models import path_of

NO_STRATEGY = Strategy()
PARAM = b"""7767517
3 3
Input            data   0 1 data 0=8 1=6 2=3
InnerProduct     fc     1 1 data hidden 0=2 1=1 2=288
Softmax          prob   1 1 hidden prob
"""


def taken(
    files: Mapping[str, bytes],
    strategy: Strategy = NO_STRATEGY,
    shapes: Mapping[str, tuple[int | str, ...]] | None = None,
) -> CarveAnswer:
    views = {name: memoryview(data) for name, data in files.items()}
    form = form_in(views)
    assert form is not None
    request = CarveRequest(
        model_path="", output_path="", strategy=strategy, input_shapes=dict(shapes or {})
    )
    return take_whole(form, views, request, lambda location: f"hash of {location!r}")


def test_a_tflite_file_says_what_it_takes_and_gives() -> None:
    answer = taken({"": tflite_models.dense(rows=None)})
    assert answer.inputs == (TensorSpec("x", "FP32", (None, 4)),)
    assert answer.outputs == (TensorSpec("y", "FP32", (None, 2)),)
    (part,) = answer.slices
    assert (part.backend, part.operators) == ("litert", 1)
    assert [each.role for each in part.artifacts] == ["model"]


def test_a_real_tflite_file_has_the_signature_that_its_interpreter_shows() -> None:
    from ai_edge_litert.interpreter import Interpreter

    data = path_of("basic-pitch-lite").read_bytes()
    answer = taken({"": data})
    interpreter = Interpreter(model_content=data, num_threads=1)
    for specs, details in (
        (answer.inputs, interpreter.get_input_details()),
        (answer.outputs, interpreter.get_output_details()),
    ):
        shown = [(each["name"], [int(dim) for dim in each["shape_signature"]]) for each in details]
        assert [(each.name, each.oip_shape()) for each in specs] == shown


def test_free_sizes_can_be_given_and_others_not() -> None:
    data = tflite_models.dense(rows=None)
    assert taken({"": data}, shapes={"x": ("N", 4)}).inputs[0].shape == ("N", 4)
    for shapes, said in (({"x": (2, 5)}, "the file"), ({"z": (1, 4)}, "no input of the model")):
        with pytest.raises(BadStrategy, match=said):
            taken({"": data}, shapes=shapes)


def test_a_strategy_says_where_it_runs_and_not_where_it_is_cut() -> None:
    data = tflite_models.dense()
    setting = SliceSetting(name="tail", nodes=("board",), backend="litert")
    (part,) = taken({"": data}, Strategy(slices=(setting,))).slices
    assert (part.name, part.nodes) == ("tail", ("board",))
    with pytest.raises(BadStrategy, match="runs whole on litert"):
        taken({"": data}, Strategy(partition_points=("x",)))
    with pytest.raises(BadStrategy, match="'onnxruntime', which takes no"):
        taken({"": data}, Strategy(slices=(SliceSetting(backend="onnxruntime"),)))


def test_a_file_for_an_edge_tpu_is_meant_for_coral() -> None:
    (part,) = taken({"": tflite_models.dense(custom="edgetpu-custom-op")}).slices
    assert part.backend == "coral"
    assert [each.operator for each in part.needs.operators] == ["tflite.edgetpu-custom-op"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (tflite_models.dense(names=("x", "")), "has the name ''"),
        (tflite_models.dense(kind=5), "which DIN carries to no slice"),
    ],
)
def test_what_din_cannot_carry_is_refused_by_name(made: bytes, said: str) -> None:
    with pytest.raises(BadModel, match=said):
        taken({"": made})


def test_no_damage_of_a_tflite_file_ends_in_anything_but_words() -> None:
    data = bytearray(tflite_models.dense(rows=None))
    chance = random.Random(11)
    refused = 0
    for _ in range(4000):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(8, len(data))] = chance.choice((0, 1, 0x7F, 0xFF))
        damaged = damaged[: chance.randint(9, len(data))]
        try:
            taken({"": bytes(damaged)})
        except (BadModel, TooLarge):
            refused += 1
    assert refused > 2000


def test_a_param_file_says_what_it_takes_and_gives() -> None:
    answer = taken({"": PARAM, "net.bin": bytes(2320)})
    assert answer.inputs == (TensorSpec("data", "FP32", (3, 6, 8)),)
    assert answer.outputs == (TensorSpec("prob", "FP32", None),)
    (part,) = answer.slices
    assert part.backend == "ncnn"
    assert [each.role for each in part.artifacts] == ["model", "weights"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"3 3", b"900000000 900000000", "layers and values"),
        (b"1 1 data hidden", b"7 1 data hidden", "names"),
        (b"1 1 hidden prob", b"1 1 absent prob", "takes 'absent' before any layer makes it"),
        (b"1 1 hidden prob", b"1 1 hidden data", "two layers make 'data'"),
        (b"Softmax", b"\xff\xff", "no text"),
        (b"fc     1 1", b"fc     one 1", "no layer"),
    ],
)
def test_a_damaged_param_file_is_refused(old: bytes, new: bytes, said: str) -> None:
    with pytest.raises(BadModel, match=said):
        taken({"": PARAM.replace(old, new), "net.bin": bytes(2320)})


def test_sizes_that_a_param_file_leaves_out_are_asked_for() -> None:
    files = {"": PARAM.replace(b" 0=8 1=6 2=3", b""), "net.bin": bytes(2320)}
    with pytest.raises(BadStrategy, match="does not say the size of input 'data'"):
        taken(files)
    assert taken(files, shapes={"data": (3, 6, 8)}).inputs[0].shape == (3, 6, 8)


def test_a_param_file_without_its_weights_is_refused() -> None:
    with pytest.raises(BadModel, match=r"one \.bin file, 0 came"):
        taken({"": PARAM})


def test_forms_are_told_by_how_files_begin() -> None:
    assert form_of(b"\x08\x07\x12\x04") is None
    assert form_of(b"") is None
    assert form_of(b"77675170") is None
    assert runs_whole("litert")
    assert not runs_whole("onnxruntime")
    assert issubclass(BadStrategy, UsageError)
