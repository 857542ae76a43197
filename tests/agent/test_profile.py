"""What a node says of itself, from the operator's settings."""

from __future__ import annotations

import pytest

from din.agent.profile import make_profile
from din.config import NodeConfig
from din.system.identity import Identity

IDENTITY = Identity(node_id="a1" * 8, session=1)


@pytest.mark.parametrize(
    ("is_told", "has_joined", "is_insecure"),
    [(False, False, False), (True, False, True), (True, True, False)],
)
def test_a_node_says_that_it_runs_insecurely_unless_it_has_joined(
    is_told: bool, has_joined: bool, is_insecure: bool
) -> None:
    config = NodeConfig(name="edge-1", insecure_network=is_told)
    profile = make_profile(config, IDENTITY, None, (), has_joined=has_joined)
    assert profile.is_insecure_network is is_insecure
