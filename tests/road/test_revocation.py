"""A node that is thrown out, as the other nodes see it."""

from __future__ import annotations

import pytest

from tests.road.processes import Network, post_json, wait_for
from tests.road.test_cases import answers_normally, register_chain
from tests.road.test_join import joined, new_token, order_for, start
from tests.road.test_relay import LEFT, RIGHT, ZIGZAG

pytestmark = pytest.mark.system


def test_a_revoked_node_loses_its_links_to_other_nodes_while_deployments_still_name_it(
    network: Network,
) -> None:
    url = start(network)
    for name in (LEFT, RIGHT):
        joined(order_for(network, new_token(network, labels={"side": name}), url, name))
        network.start_node(name, gateway=(url,))
    network.wait_ready(LEFT, RIGHT)
    register_chain(network, slices=ZIGZAG)
    answers_normally(network)
    assert "peer_link_lost" not in network.log_of(LEFT)
    assert post_json(network.url, f"/api/v1/nodes/{RIGHT}/revoke", {})[0] == 200
    # No other node could take its slice, so no order comes that would name others.
    wait_for("its peer cuts it off", lambda: "peer_link_lost" in network.log_of(LEFT))
    lost = [line for line in network.log_of(LEFT).splitlines() if "peer_link_lost" in line]
    assert all("the node was revoked" in line for line in lost), lost
    wait_for("it notices", lambda: "peer_link_lost" in network.log_of(RIGHT))
