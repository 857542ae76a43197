import subprocess
import sys

import pytest

from din.adapters.catalogue import (
    ADAPTERS,
    CONTEXT_SPEC,
    after_specs,
    before_specs,
    check_adapter,
    memory_mib,
)
from din.domain.model import AdapterSpec
from din.domain.tensor import TensorSpec
from din.errors import UsageError

PICTURE = TensorSpec("input.1", "FP32", ("B", 3, "H", "W"))
HEADS = tuple(TensorSpec(name, "FP32", ("B", n, "h", "w")) for name, n in
              (("537", 1), ("538", 2), ("539", 2), ("540", 10)))  # fmt: skip


def test_the_catalogue_imports_neither_numpy_nor_pillow():
    program = (
        "import sys, din.adapters.catalogue; print(sorted({'numpy', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_image_takes_a_file_and_gives_the_model_its_input():
    inputs, outputs = before_specs(AdapterSpec("image", {"size": [320, 256]}), (PICTURE,))
    assert inputs == (TensorSpec("image", "BYTES", (1,)),)
    assert outputs == (TensorSpec("input.1", "FP32", (1, 3, 256, 320)), CONTEXT_SPEC)
    _, outputs = before_specs(AdapterSpec("image", {"max_side": 640}), (PICTURE,))
    assert outputs[0].shape == (1, 3, "H", "W")
    last = TensorSpec("x", "UINT8", (1, 128, 96, 3))
    _, outputs = before_specs(AdapterSpec("image", {"layout": "NHWC"}), (last,))
    assert outputs[0] == last


def test_centerface_reads_four_heads_and_the_context():
    inputs, outputs = after_specs(AdapterSpec("centerface"), HEADS)
    assert inputs == (*HEADS, CONTEXT_SPEC)
    assert [each.name for each in outputs] == ["boxes", "scores", "labels", "landmarks"]
    named = {"heat": "540", "scale": "539", "offset": "538", "landmarks": "537"}
    inputs, _ = after_specs(AdapterSpec("centerface", {"outputs": named}), HEADS)
    assert [each.name for each in inputs] == ["540", "539", "538", "537", "din.context"]


def test_classify_reads_the_only_output():
    inputs, outputs = after_specs(AdapterSpec("classify"), HEADS[:1])
    assert inputs == HEADS[:1]
    assert [each.name for each in outputs] == ["scores", "labels", "classes"]


def test_every_adapter_says_what_memory_it_needs():
    assert all(memory_mib(AdapterSpec(name)) >= 32 for name in ADAPTERS)
    assert memory_mib(AdapterSpec("nothing")) == 0


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("imgae", {}, ["'imgae'", "did you mean 'image'?"]),
        ("video", {}, ["'video'", "known: image, centerface, classify"]),
        ("centerface", {}, ["after the model, not before", "image"]),
        ("image", {"siez": [1, 1]}, ["'siez'", "did you mean 'size'?"]),
        ("image", {"size": ["a", 1]}, ["size[0]", "int"]),
        ("image", {"size": [0, 1]}, ["size[0]", ">= 1"]),
        ("image", {"size": [1, 1, 1]}, ["size"]),
        ("image", {"size": [8, 8], "max_side": 3}, ["exclude each other"]),
        ("image", {"std": [1, 0, 1], "size": [8, 8]}, ["std"]),
        ("image", {"layout": "CHW", "size": [8, 8]}, ["layout", "CHW"]),
        ("image", {}, ["size or max_side", "input.1"]),
    ],
)
def test_a_bad_before_adapter_says_what_is_wrong(
    name: str, options: dict[str, object], words: list[str]
):
    with pytest.raises(UsageError) as caught:
        before_specs(AdapterSpec(name, options), (PICTURE,))
    for word in words:
        assert word in caught.value.story()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((PICTURE, PICTURE), "2"),
        ((), "has 0"),
        ((TensorSpec("x", "INT64", (1, 3, 8, 8)),), "INT64"),
        ((TensorSpec("x", "FP32", (1, 8)),), "has 2"),
        ((TensorSpec("x", "FP32", (1, 1, 8, 8)),), "channels 3"),
        ((TensorSpec("x", "FP32", (4, 3, 8, 8)),), "batch 1"),
        ((TensorSpec("x", "FP32", (1, 3, 9, 8)),), "height 8"),
        ((TensorSpec("x", "FP32", (1, 3, 8, 9)),), "width 8"),
    ],
)
def test_a_model_that_takes_no_picture_is_refused(inputs: tuple[TensorSpec, ...], words: str):
    with pytest.raises(UsageError, match=words):
        before_specs(AdapterSpec("image", {"size": [8, 8]}), inputs)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("centerface",
         {"outputs": {"heat": "1", "scale": "538", "offset": "539", "landmarks": "540"}},
         ["'1'", "537, 538, 539, 540"]),
        ("centerface", {"outputs": {"heat": "537"}}, ["scale"]),
        ("centerface", {"threshold": 2}, ["threshold"]),
        ("centerface", {"treshold": 0.5}, ["did you mean 'threshold'?"]),
        ("classify", {}, ["which of 4 outputs"]),
        ("classify", {"output": "x"}, ["'x'"]),
        ("image", {}, ["before the model, not after"]),
    ],
)  # fmt: skip
def test_a_bad_after_adapter_says_what_is_wrong(
    name: str, options: dict[str, object], words: list[str]
):
    with pytest.raises(UsageError) as caught:
        after_specs(AdapterSpec(name, options), HEADS)
    for word in words:
        assert word in caught.value.story()


def test_heads_of_another_number_or_kind_are_refused():
    with pytest.raises(UsageError, match="four outputs"):
        after_specs(AdapterSpec("centerface"), HEADS[:3])
    with pytest.raises(UsageError, match="INT8"):
        after_specs(AdapterSpec("classify"), (TensorSpec("p", "INT8", (1, 4)),))
    check_adapter(AdapterSpec("classify"), "after")
