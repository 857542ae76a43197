"""CenterFace for real, and its decoding on heads of our own."""

import io
import os
import subprocess
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import pytest
import skimage.data
from PIL import Image

from din.adapters.catalogue import after_specs, before_specs
from din.adapters.centerface import CenterFaceAdapter, suppress
from din.adapters.context import ImageContext, encode_context
from din.adapters.registry import load_adapter
from din.domain.model import CONTEXT_TENSOR, AdapterSpec
from din.domain.tensor import TensorSpec
from din.errors import BadTensor

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache" / "models" / "centerface.onnx"
HEADS = tuple(TensorSpec(name, "FP32", ("B", n, "h", "w")) for name, n in
              (("heat", 1), ("scale", 2), ("offset", 2), ("points", 10)))  # fmt: skip
PLAIN = ImageContext(width=64, height=64, scale_x=1.0, scale_y=1.0, pad_x=0, pad_y=0)


def faces(**options: object) -> CenterFaceAdapter:
    spec = AdapterSpec("centerface", options)
    made = load_adapter(spec, *after_specs(spec, HEADS))
    assert isinstance(made, CenterFaceAdapter)
    return made


def heads(*cells: tuple[int, int, float], side: int = 16) -> dict[str, np.ndarray]:
    """Heads with a face of 8 x 16 pixels (width, height) at each (row, column, score)."""
    found = {
        spec.name: np.zeros((1, spec.shape[1], side, side), np.float32)
        for spec in HEADS
        if spec.shape
    }
    for row, column, score in cells:
        found["heat"][0, 0, row, column] = score
    found["scale"][0, 0] = np.log(4)
    found["scale"][0, 1] = np.log(2)
    found["points"][:] = 0.5
    found[CONTEXT_TENSOR] = encode_context(PLAIN)
    return found


def test_a_peak_becomes_a_box_with_its_score_label_and_landmarks():
    found = faces().run(heads((8, 8, 0.9)), (), {})
    assert found["boxes"].tolist() == [[30, 26, 38, 42]]
    assert found["scores"].tolist() == [pytest.approx(0.9)]
    assert found["labels"].tolist() == [b"face"]
    assert found["landmarks"].tolist() == [[34, 34] * 5]
    assert [found[name].dtype for name in ("boxes", "scores", "landmarks")] == [np.float32] * 3


def test_boxes_are_in_pixels_of_the_picture():
    given = heads((8, 8, 0.9))
    given[CONTEXT_TENSOR] = encode_context(
        ImageContext(width=20, height=100, scale_x=2.0, scale_y=0.5, pad_x=4, pad_y=2)
    )
    assert faces().run(given, (), {})["boxes"].tolist() == [[13, 48, 17, 80]]


def test_weak_faces_and_overlapping_faces_are_left_out():
    given = heads((8, 8, 0.8), (8, 9, 0.9), (2, 2, 0.6), (13, 13, 0.4))
    assert [round(float(s), 2) for s in faces().run(given, (), {})["scores"]] == [0.9, 0.6]
    assert len(faces(threshold=0.3).run(given, (), {})["scores"]) == 3
    assert len(faces(nms=1.0).run(given, (), {})["scores"]) == 3
    assert len(faces(faces_max=1).run(given, (), {})["scores"]) == 1


def test_no_face_gives_empty_tensors_of_the_right_shape():
    found = faces().run(heads(), (), {})
    assert {name: array.shape for name, array in found.items()} == {
        "boxes": (0, 4),
        "scores": (0,),
        "labels": (0,),
        "landmarks": (0, 10),
    }


def test_hostile_heads_end_in_bounded_boxes_or_a_bad_tensor():
    given = heads(side=120)
    given["heat"][:] = np.inf
    given["scale"][:] = 1e30
    given["offset"][:] = np.nan
    found = faces().run(given, (), {})
    assert np.isfinite(found["boxes"]).all()
    assert (found["boxes"] <= 64).all()
    del given["scale"]
    given["scale"] = np.zeros((1, 2, 8, 8), np.float32)
    with pytest.raises(BadTensor, match="different heights"):
        faces().run(given, (), {})
    given["scale"] = np.zeros((1, 3, 120, 120), np.float32)
    with pytest.raises(BadTensor, match="'scale'"):
        faces().run(given, (), {})


def test_suppression_keeps_the_strongest():
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10], [0, 0, 0, 0]], np.float32)
    assert suppress(boxes, 0.3) == [0, 2, 3]
    assert suppress(boxes[:0], 0.3) == []


@pytest.fixture(scope="module")
def centerface() -> bytes:
    if not MODEL.exists():
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "fetch_models.py"), "centerface"], check=True
        )
    import onnx

    made = onnx.load(str(MODEL))
    weights = {each.name for each in made.graph.initializer}
    inputs = [each for each in made.graph.input if each.name not in weights]
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    for value in (*made.graph.input, *made.graph.output):
        for position, symbol in ((0, "B"), (2, "H"), (3, "W")):
            value.type.tensor_type.shape.dim[position].dim_param = f"{value.name}.{symbol}"
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("photo", "wanted"),
    [("astronaut", [[182, 58, 270, 178]]), ("chelsea", []), ("coffee", [])],
)
@pytest.mark.parametrize("sizing", [{"max_side": 512}, {"size": [512, 512]}])
def test_faces_are_found_where_they_are(
    centerface: bytes, photo: str, wanted: list[list[int]], sizing: dict[str, object]
):
    from din.backends.onnxruntime_backend import load

    session = load(centerface, {"threads": "1"})
    before_spec = AdapterSpec("image", sizing)
    before = load_adapter(before_spec, *before_specs(before_spec, session.inputs))
    after_spec = AdapterSpec("centerface")
    after = load_adapter(after_spec, *after_specs(after_spec, session.outputs))
    buffer = io.BytesIO()
    Image.fromarray(getattr(skimage.data, photo)()).save(buffer, "PNG")
    element = np.empty(1, np.object_)
    element[0] = buffer.getvalue()
    made = before.run({"image": element}, (), {})
    context = made.pop(CONTEXT_TENSOR)
    found = after.run({**session.run(made, (), {}), CONTEXT_TENSOR: context}, (), {})
    assert len(found["boxes"]) == len(wanted)
    if wanted:
        assert np.allclose(found["boxes"], wanted, atol=8)
        assert found["labels"].tolist() == [b"face"]
