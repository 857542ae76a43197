"""How much free disk carving asks for: what it writes, by a real carver."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from din.artifacts.files import ArtifactFolder
from din.domain.model import CarveAnswer, CarveRequest
from din.domain.strategy import Strategy
from din.errors import TooLarge, Unavailable
from din.gateway.registration.carving import Carving
from din.gateway.trust.vault import Vault

SPARE_BYTES = 64 * 1024
VALUES = 128 * 1024
"""Half a MiB of weights for each of two operators."""


def two_additions() -> bytes:
    weights = [
        numpy_helper.from_array(np.full((VALUES,), each, dtype=np.float32), f"w{each}")
        for each in (1, 2)
    ]
    nodes = [
        helper.make_node("Add", ["x", "w1"], ["h"], "first"),
        helper.make_node("Add", ["h", "w2"], ["y"], "second"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, [VALUES])],
        [info("y", TensorProto.FLOAT, [VALUES])],
        weights,
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return model.SerializeToString()


def carve(folder: Path, *points: str, is_sealed: bool = False) -> CarveAnswer:
    """With room for little beside the upload."""
    source = two_additions()
    sha256 = hashlib.sha256(source).hexdigest()
    artifacts = ArtifactFolder(folder / "artifacts", len(source) + SPARE_BYTES)
    (artifacts.path / sha256).write_bytes(source)
    carving = Carving(artifacts, folder / "carving", Vault(folder / "trust", is_signing=True))
    strategy = Strategy(partition_points=points)
    request = CarveRequest(model_path="", output_path="", strategy=strategy)
    return asyncio.run(carving.carve(request, sha256, is_sealed=is_sealed))


def test_a_whole_model_needs_no_second_room_for_its_weights(tmp_path: Path) -> None:
    """T60: what serves as it is is not copied."""
    (part,) = carve(tmp_path).slices
    source = hashlib.sha256(two_additions()).hexdigest()
    assert source in {each.sha256 for each in part.artifacts}


def test_slices_without_room_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="may be written") as refused:
        carve(tmp_path, "first")
    assert "artifact_quota_mib" in refused.value.hint
    assert list((tmp_path / "carving").iterdir()) == []
    assert len(list((tmp_path / "artifacts").iterdir())) == 1


def test_what_is_sealed_is_written_anew_and_needs_room_for_all(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="over the artifact quota"):
        carve(tmp_path, is_sealed=True)
