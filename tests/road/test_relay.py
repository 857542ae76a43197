"""Roads that are not the shortest: over TCP alone, through the gateway, over a weak link."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.road import small_models
from tests.road.asking import asking
from tests.road.conftest import pixels, whole_model
from tests.road.islands import Islands, islands
from tests.road.processes import Network, wait_for
from tests.road.test_cases import X, answers_normally, chain_is_right, register_chain
from tests.road.test_road import register

pytestmark = pytest.mark.system

LEFT, RIGHT = "left", "right"
ZIGZAG = ({"labels": {"side": LEFT}}, {"labels": {"side": RIGHT}}, {"labels": {"side": LEFT}})


def gateway_takes_tcp_only(network: Network) -> None:
    """The file by which nodes on this host would dial it is gone."""
    facts = json.loads((network.folder / "gateway" / "gateway.json").read_text())
    remove_sockets(facts["links"])


def nodes_take_tcp_only(network: Network, *names: str) -> None:
    with network.client() as client:
        for name in names:
            profile = client.node(name).profile
            assert profile is not None
            remove_sockets(profile.addresses)


def remove_sockets(addresses: Iterable[str]) -> None:
    paths = [Path(each.removeprefix("unix:")) for each in addresses if each.startswith("unix:")]
    assert paths
    for path in paths:
        path.unlink()


def start_on(
    network: Network, sea: Islands, name: str, island: str, address: str, **settings: Any
) -> None:
    network.wrappers[name] = sea.enter(island)
    network.start_node(name, host=address, insecure_network=True, labels={"side": name}, **settings)


@pytest.fixture
def sea() -> Iterator[Islands]:
    with islands() as made:
        yield made


def test_everything_works_over_tcp(network: Network, centerface: Path) -> None:
    network.start_gateway()
    gateway_takes_tcp_only(network)
    for name in (LEFT, RIGHT):
        network.start_node(name, labels={"side": name})
    network.wait_ready(LEFT, RIGHT)
    nodes_take_tcp_only(network, LEFT, RIGHT)
    for name in (LEFT, RIGHT):
        assert '"is_local":false' in network.log_of(name)
    register_chain(network, slices=ZIGZAG)
    register_chain(network, "whole", partition_points=())
    register(
        network,
        centerface,
        "faces",
        partition_points=("404", "474"),
        inputs={"input.1": (1, 3, "H", "W")},
        slices=ZIGZAG,
    )
    answers_normally(network)
    answers_normally(network, "whole")
    big = np.random.default_rng(3).random((12 * 1024 * 32, 8), dtype=np.float32)
    tensor = pixels(320)
    with network.client() as client:
        assert client.trace("last").path == "relay"
        assert client.plan("chain").relays == ()
        given = client.infer("chain", {"x": big}).outputs["y"]
        np.testing.assert_array_equal(given, small_models.chain_answer(big))
        heads = client.infer("faces", {"input.1": tensor}).outputs
    for name, array in whole_model(centerface, tensor, is_optimised=True).items():
        np.testing.assert_allclose(heads[name], array, rtol=1e-4, atol=1e-6)
    with asking(network, "chain", {"x": X}, chain_is_right) as load:
        load.wait_more(200)
        network.kill_node(RIGHT)
        network.restart_node(RIGHT)
        network.wait_ready(RIGHT)
        load.wait_more(200)


@pytest.mark.parametrize("is_dropped", [False, True], ids=["no route", "dropped"])
def test_the_gateway_relays_between_nodes_that_cannot_dial_each_other(
    network: Network, sea: Islands, centerface: Path, is_dropped: bool
) -> None:
    """T04: two networks that only the gateway is in."""
    network.start_gateway(host="0.0.0.0", insecure_network=True)
    gateway_takes_tcp_only(network)
    for name in (LEFT, RIGHT):
        island, address = sea.add(name, is_forwarded_into_nothing=is_dropped)
        # The gateway is asked where this node reaches it.
        network.url = f"http://{address.rpartition('.')[0]}.1:{network.url.rpartition(':')[2]}"
        start_on(network, sea, name, island, address)
    network.wait_ready(LEFT, RIGHT)
    nodes_take_tcp_only(network, LEFT, RIGHT)
    shouted = network.din("node", "list").stderr
    assert "the gateway speaks plain text off loopback" in shouted
    assert f"(--insecure-network) at {LEFT}, {RIGHT};" in shouted
    register_chain(network, slices=ZIGZAG)
    answers_normally(network)
    with network.client() as client:
        plan = client.plan("chain")
        assert {frozenset(pair) for pair in plan.relays} == {frozenset((LEFT, RIGHT))}
        steps = client.infer("chain", {"x": X}).execution_trace
        assert [step.node for step in steps] == [LEFT, RIGHT, LEFT]
        big = np.random.default_rng(3).random((8 * 1024 * 32, 8), dtype=np.float32)
        given = client.infer("chain", {"x": big}).outputs["y"]
        np.testing.assert_array_equal(given, small_models.chain_answer(big))
    shown = network.din("plan", "chain")
    assert shown.returncode == 0
    assert "relay" in shown.stdout + shown.stderr
    document = json.loads(network.din("plan", "chain", "-o", "json").stdout)
    assert document["plan"]["relays"]
    register(
        network,
        centerface,
        "faces",
        partition_points=("404", "474"),
        inputs={"input.1": (1, 3, "H", "W")},
        slices=ZIGZAG,
    )
    tensor = pixels(160)
    with network.client() as client:
        heads = client.infer("faces", {"input.1": tensor}).outputs
    for name, array in whole_model(centerface, tensor, is_optimised=True).items():
        np.testing.assert_allclose(heads[name], array, rtol=1e-4, atol=1e-6)
    with asking(network, "chain", {"x": X}, chain_is_right) as load:
        load.wait_more(100)
        network.kill_node(RIGHT)
        network.restart_node(RIGHT)
        network.wait_ready(LEFT, RIGHT)
        nodes_take_tcp_only(network, RIGHT)
        load.wait_more(100)


def test_a_weak_link_that_is_cut_for_eight_seconds_costs_no_request(
    network: Network, sea: Islands
) -> None:
    """20 ms each way, 2 % loss, 20 Mbit/s; every request needs the node behind it."""
    island, address, link = sea.add_weak(RIGHT, delay_ms=20, loss=0.02, bits_per_s=20e6)
    other, other_address = sea.add(LEFT)
    network.start_gateway(host="0.0.0.0", insecure_network=True)
    gateway_takes_tcp_only(network)
    port = network.url.rpartition(":")[2]
    for name, on, at in ((RIGHT, island, address), (LEFT, other, other_address)):
        network.url = f"http://{at.rpartition('.')[0]}.1:{port}"
        start_on(network, sea, name, on, at)
    network.wait_ready(LEFT, RIGHT)
    nodes_take_tcp_only(network, LEFT, RIGHT)
    register_chain(network, slices=ZIGZAG)
    answers_normally(network)
    ids = {node.node_id for node in network.node_views()}
    with asking(network, "chain", {"x": X}, chain_is_right, timeout_ms=40_000) as load:
        load.wait_more(40)
        link.is_cut = True
        time.sleep(8)
        assert load.bad == []
        link.is_cut = False
        load.wait_more(40)
        network.wait_ready(LEFT, RIGHT)
    assert {node.node_id for node in network.node_views()} == ids
    assert link.carried > 100


def test_a_node_with_a_new_address_is_reached_there(network: Network, sea: Islands) -> None:
    """T06: the lease ran out. Same id, the new address in the list, requests go on."""
    network.start_gateway(host="0.0.0.0", insecure_network=True)
    gateway_takes_tcp_only(network)
    port = network.url.rpartition(":")[2]
    lease: dict[str, str] = {}
    for name in (LEFT, RIGHT):
        island, lease[name] = sea.add(name, is_routed=True)
        network.url = f"http://{lease[name].rpartition('.')[0]}.1:{port}"
        start_on(network, sea, name, island, "0.0.0.0")
    network.url = f"http://127.0.0.1:{port}"
    network.wait_ready(LEFT, RIGHT)
    nodes_take_tcp_only(network, LEFT, RIGHT)
    register_chain(network, slices=ZIGZAG)
    with network.client() as client:
        # A network card that has just been switched on counts as up a moment later.
        wait_for("the nodes have dialled each other", lambda: client.plan("chain").relays == ())
    before = {node.name: node for node in network.node_views()}
    with asking(network, "chain", {"x": X}, chain_is_right) as load:
        load.wait_more(100)
        new = sea.renumber(RIGHT)
        wait_for(
            "the new address is known",
            lambda: new in next(n.address for n in network.node_views() if n.name == RIGHT),
            30,
        )
        network.wait_ready(LEFT, RIGHT)
        load.wait_more(100)
    after = {node.name: node for node in network.node_views()}
    assert {n: v.node_id for n, v in after.items()} == {n: v.node_id for n, v in before.items()}
    with network.client() as client:
        profile = client.node(RIGHT).profile
        assert profile is not None
        assert not any(lease[RIGHT] in each for each in profile.addresses)

        def is_direct() -> bool:
            answers_normally(network)
            return client.plan("chain").relays == ()

        wait_for("the nodes have dialled each other again", is_direct)
