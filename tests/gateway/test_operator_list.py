"""Operators that a gateway lets models have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from gateway_fakes import chain_of
from gateway_play import GatewayPlay
from msgspec.structs import replace
from stories import perform

from din.config import GatewayConfig
from din.domain.support import Need, Needs
from din.errors import BadModel
from din.gateway.registration.operator_list import OPERATORS_ALLOWED, check_operators


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    return partial(perform, tmp_path)


def needing(*operators: str):
    partition = chain_of(1)
    needs = Needs(17, 8, tuple(Need(each, 1, f"node-{each}") for each in operators))
    return replace(partition, slices=tuple(replace(part, needs=needs) for part in partition.slices))


def test_what_engines_know_is_allowed_by_itself_and_a_domain_of_somebody_is_not() -> None:
    assert GatewayConfig().operators_allowed == OPERATORS_ALLOWED
    good = needing("Conv", "ai.onnx.ml.Normalizer", "com.microsoft.FusedConv")
    check_operators(good.slices, OPERATORS_ALLOWED)
    with pytest.raises(BadModel) as error:
        check_operators(needing("Conv", "evil.corp.Exec").slices, OPERATORS_ALLOWED)
    assert "'node-evil.corp.Exec' is the operator evil.corp.Exec" in error.value.message
    assert "operators_allowed is ai.onnx.*, com.microsoft.*" in error.value.hint


def test_an_operator_may_be_left_out_by_name() -> None:
    allowed = ("ai.onnx.[!L]*",)
    check_operators(needing("Conv").slices, allowed)
    with pytest.raises(BadModel, match=r"ai\.onnx\.Loop"):
        check_operators(needing("Conv", "Loop").slices, allowed)
    with pytest.raises(BadModel) as error:
        check_operators(needing("Conv").slices, ())
    assert "operators_allowed is empty" in error.value.hint


def test_a_model_with_another_operator_is_not_registered_and_leaves_nothing(run) -> None:
    async def story(play: GatewayPlay) -> None:
        play.add()
        with pytest.raises(BadModel, match="evil"):
            await play.register(needing("evil.corp.Exec"))
        assert not play.gateway.models.model_ids()
        play.gateway.models.builder.operators_allowed = ("*",)
        await play.register(needing("evil.corp.Exec"))
        assert play.gateway.models.model_ids() == ("faces",)

    run(story)
