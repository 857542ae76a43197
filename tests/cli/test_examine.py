"""`din model profile | verify`: what is asked, what is shown, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from din.domain.probe import (
    OperatorTime,
    ProfileReport,
    TensorError,
    TensorFacts,
    VerifyLevel,
    VerifyReport,
)
from din.domain.profile import (
    DeviceClass,
    Profile,
    ProfileItem,
    ProfileModel,
    ProfileView,
    Verification,
    VerifyModel,
    VerifyView,
)
from tests.cli.conftest import Run
from tests.client.fake_gateway import FakeGateway, document

PROFILE = ("POST", "/api/v1/models/centerface/profile")
VERIFY = ("POST", "/api/v1/models/centerface/verify")
DEVICE = DeviceClass("x86_64-cpu", "a CPU", (), 4.0, "onnxruntime 1.32.0")


def profile_of(count: int) -> Profile:
    operators = tuple(
        OperatorTime(
            name=f"op{place}",
            kind="Conv",
            ms=float(place),
            outputs=(TensorFacts(f"t{place}", "FP32", (1, 256), 1024),),
            is_estimated=place == 1,
        )
        for place in range(count)
    )
    return Profile(
        source_sha256="a",
        device=DEVICE,
        bucket="typical",
        node="edge-1",
        measured_at="2026-01-01T00:00:00Z",
        report=ProfileReport(
            inputs=(TensorFacts("x", "FP32", (1, 3), 12),),
            operators=operators,
            whole_ms=sum(each.ms for each in operators),
            plain_ms=9.0,
            rounds=7,
            coverage=0.5,
            engine=DEVICE.engine,
        ),
    )


def profiled(fake: FakeGateway, *items: ProfileItem) -> None:
    view = ProfileView(model_id="centerface", version="3", items=items)
    fake.routes[PROFILE] = document(view)


def item(**more: Any) -> ProfileItem:
    return ProfileItem(**({"device": DEVICE, "node": "edge-1"} | more))


def verified(fake: FakeGateway, state: str, summary: str, **more: Any) -> None:
    error = TensorError(
        name="heatmap",
        after_slice=2,
        is_output=True,
        dtype="FP32",
        shape=(1, 4),
        max_absolute=0.5,
        max_relative=0.25,
        is_equal=state == "right",
        is_within=state == "right",
        trouble="" if state == "right" else "4 of 4 elements differ",
    )
    level = VerifyLevel(optimisation="off", is_exact=True, tensors=(error,))
    report = VerifyReport(inputs=(), levels=(level,), **more)
    found = Verification(state=state, summary=summary, report=report)
    view = VerifyView(model_id="centerface", version="3", verification=found)
    fake.routes[VERIFY] = document(view)


def asked_of(fake: FakeGateway, kind: Any) -> Any:
    return msgspec.json.decode(fake.seen[-1].body, type=kind)


def test_the_slowest_operators_come_first_and_the_rest_is_said(fake: FakeGateway, run: Run) -> None:
    profiled(fake, item(profile=profile_of(25), live_factor=1.5))
    done = run("model", "profile", "centerface", "--node", "edge-1", "--shape", "x=1,3,8,8")
    assert done.exit_code == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    first = rows.index(["MS", "SHARE", "OPERATOR", "KIND", "MAKES"]) + 1
    assert rows[first] == ["24.000", "8.0%", "op24", "Conv", "1.0", "KiB"]
    assert "1.50 times the profile" in done.stdout
    assert "5 more operators take 10.000 ms" in done.stderr
    asked = asked_of(fake, ProfileModel)
    assert (asked.node, asked.shapes) == ("edge-1", {"x": (1, 3, 8, 8)})
    wide = run("model", "profile", "centerface", "-o", "wide")
    assert "~1.000" in wide.stdout
    assert "more operators" not in wide.stderr


def test_a_class_that_failed_is_said_beside_the_others_and_fails_alone(
    fake: FakeGateway, run: Run
) -> None:
    bad = item(node="edge-2", error="no memory", error_code="DIN-301")
    profiled(fake, item(profile=profile_of(2)), bad)
    done = run("model", "profile", "centerface")
    assert done.exit_code == 0
    assert "edge-2" in done.stderr
    assert "no memory" in done.stderr
    profiled(fake, bad)
    assert run("model", "profile", "centerface").exit_code != 0


def test_right_slices_are_shown_and_told_in_a_sentence(fake: FakeGateway, run: Run) -> None:
    verified(fake, "right", "1 tensors were equal", untested=("noise",))
    done = run("model", "verify", "centerface", "--seed", "7", "--version", "3")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:4] == ["off", "heatmap", "output", "FP32"]
    assert "not compared: noise" in done.stderr
    assert "1 tensors were equal" in done.stderr
    assert asked_of(fake, VerifyModel).seed == 7
    assert fake.seen[-1].path.endswith("/verify?version=3")


def test_wrong_slices_end_with_one(fake: FakeGateway, run: Run) -> None:
    verified(fake, "wrong", "the slices differ from the whole")
    done = run("model", "verify", "centerface")
    assert done.exit_code == 1
    assert "the slices differ from the whole" in done.stderr
    assert "differs" in done.stdout
    as_json = run("model", "verify", "centerface", "-o", "json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["verification"]["state"] == "wrong"


def test_given_tensors_go_along_by_the_names_of_the_inputs(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    verified(fake, "right", "equal")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "frame.npz", **{"input.1": array})
    done = run("model", "verify", "centerface", "--input", str(tmp_path / "frame.npz"))
    assert done.exit_code == 0, done.stderr
    (given,) = asked_of(fake, VerifyModel).inputs
    assert (given.name, given.datatype, given.shape) == ("input.1", "FP32", (2, 3))
    assert given.data == array.tobytes()


@pytest.mark.parametrize("text", ["1,3", "x=1,a", "x=-1", "=1"])
def test_what_is_no_shape_is_refused_before_anything_is_asked(
    fake: FakeGateway, run: Run, text: str
) -> None:
    done = run("model", "verify", "centerface", "--shape", text)
    assert done.exit_code == 2
    assert repr(text) in done.stderr
    assert VERIFY not in [(each.method, each.path) for each in fake.seen]


def test_files_that_hold_no_tensors_are_refused_by_name(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    path.write_text("{")
    for name in (str(path), str(tmp_path / "missing.json")):
        done = run("model", "profile", "centerface", "--input", name)
        assert done.exit_code == 2
        assert name in done.stderr
