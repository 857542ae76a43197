"""DIN chooses where to cut, with real processes: it splits what one node cannot hold, refuses where
a split does not pay, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from din.cli.cuts import cuts_answer, sliced_again
from din.domain.strategy import Strategy
from tests.road.conftest import pixels, whole_model
from tests.road.processes import Network
from tests.road.test_road import EXACT, register

pytestmark = pytest.mark.system
NODES = ("edge-one", "edge-two")
SHAPE = {"input.1": (1, 3, 320, 320)}


def test_what_one_node_cannot_hold_is_split_and_answers_as_the_whole(
    network: Network, centerface: Path
) -> None:
    network.start_gateway()
    for name in NODES:
        network.start_node(name, memory_mib=80)
    network.wait_ready(*NODES)
    view = register(
        network, centerface, "auto", slicing_strategy=Strategy(type="auto"), inputs=SHAPE,
        replicas=1, backend_options=EXACT,
    )  # fmt: skip
    assert view.state == "ready", view.reason
    assert view.choice is not None
    assert {each.node for each in view.choice.slices} == set(NODES)
    tensor = pixels(320)
    with network.client() as client:
        answer = client.infer("auto", {"input.1": tensor})
        assert {step.node for step in answer.execution_trace} == set(NODES)
        plan = client.plan("auto")
        placed = [each.node for each in plan.placements]
        assert placed == [each.node for each in view.choice.slices]
        assert {each.reason for each in plan.placements} == {"chosen_with_cuts"}
        assert any("no node by itself" in note for note in plan.notes)
        again = json.loads(sliced_again(client, "auto").body)
        assert not again["is_changed"], again["reason"]
        cuts = json.loads(cuts_answer(client, "auto").body)
    assert [node for _, node in cuts["slices"]] == placed
    assert len(cuts["assignment"]) == len(cuts["table"]["operators"])
    wanted = whole_model(centerface, tensor, is_optimised=False)
    for name, array in wanted.items():
        assert answer.outputs[name].tobytes() == array.tobytes()


def test_where_a_split_does_not_pay_it_is_refused_with_its_numbers(
    network: Network, centerface: Path
) -> None:
    network.start_gateway()
    for name in NODES:
        network.start_node(name)
    network.wait_ready(*NODES)
    view = register(network, centerface, "auto", slicing_strategy=Strategy(type="auto"),
                    inputs=SHAPE, replicas=1)  # fmt: skip
    assert view.state == "ready", view.reason
    assert view.choice is not None
    assert view.choice.is_split_refused
    assert view.choice.best_split is not None
    assert view.choice.best_split > view.choice.cost
    with network.client() as client:
        notes = client.plan("auto").notes
    assert any("splitting does not pay, the best split would be" in note for note in notes)
