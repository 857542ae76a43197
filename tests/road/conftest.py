"""Fixtures of the road tests: the network, the model, photos, and what the whole model says."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.road.processes import Network

MODEL = Path(__file__).resolve().parents[2] / ".cache" / "models" / "centerface.onnx"


@pytest.fixture
def network(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Network]:
    made = Network(tmp_path)
    try:
        yield made
    finally:
        made.stop()
        if request.node.stash.get(FAILED, False):
            print(made.logs())


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def centerface() -> Path:
    assert MODEL.exists(), "run scripts/fetch_models.py first (make test does)"
    return MODEL


@lru_cache(maxsize=2)
def photo(name: str) -> bytes:
    from PIL import Image
    from skimage import data

    buffer = io.BytesIO()
    Image.fromarray(getattr(data, name)()).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def pixels(side: int) -> Any:
    from PIL import Image

    image = Image.open(io.BytesIO(photo("astronaut"))).convert("RGB").resize((side, side))
    return np.ascontiguousarray(np.asarray(image, dtype=np.float32).transpose(2, 0, 1)[None])


def whole_model(path: Path, tensor: Any, *, is_optimised: bool) -> dict[str, Any]:
    """One plain ONNX Runtime session, one thread."""
    import onnx
    import onnxruntime as ort

    model = onnx.load(str(path))
    for dim, size in zip(
        model.graph.input[0].type.tensor_type.shape.dim, tensor.shape, strict=True
    ):
        dim.dim_value = size
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    weights = {each.name for each in model.graph.initializer}
    real = [each for each in model.graph.input if each.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(real)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        level.ORT_ENABLE_ALL if is_optimised else level.ORT_DISABLE_ALL
    )
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"input.1": tensor}), strict=True))
