"""Orders are the gateway's alone: a node that a deployment names may send tensors and no more."""

from __future__ import annotations

from typing import Any

import pytest
from agent_gateway import make_slice

from din.agent.router import Router
from din.domain.deployment import Epoch
from din.domain.model import Artifact
from din.wire.messages import (
    AnyMessage,
    AskHeat,
    Cancel,
    Prepare,
    Renew,
    Revoked,
    ThrownOut,
    Unload,
)

GATEWAY, PEER = "a" * 16, "b" * 16
EPOCH = Epoch(1, 7)
ORDERS: tuple[AnyMessage, ...] = (
    Cancel(1, 1, GATEWAY, 1000),
    Prepare(
        EPOCH, "m", make_slice(0, Artifact(sha256="0" * 64, nbytes=1)), (), (), 1, {}, "", {}, 1000
    ),
    Renew(EPOCH, 60_000),
    Unload(EPOCH),
    Revoked(3),
    ThrownOut((GATEWAY,)),
    AskHeat(1, 100),
)


class Part:
    """Stands for every part of the agent: notes what it is told to do."""

    gateway_id = GATEWAY
    peer_id = ""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.done.append(name)


def told(sender: str, *orders: AnyMessage) -> tuple[list[str], list[str]]:
    """What the agent's parts were told to do, and which kinds of message were refused."""
    part, link, refused = Part(), Part(), []
    link.peer_id = sender

    def report(event: str, **facts: Any) -> None:
        refused.append((event, facts["peer"], facts["kind"]))

    router: Any = Router(part, part, part, part, part, part.heat, report)
    for order in orders:
        router.on_message(link, order, None, ())
    return part.done, refused


def test_what_the_gateway_orders_is_done() -> None:
    done, refused = told(GATEWAY, *ORDERS)
    # No offer of the worker that it gives back is open: it is a loaded one that shall end.
    gave_back = ["revoked", "end_worker"]
    assert done == ["cancel", "prepare", "renew", "unload", *gave_back, "throw_out", "heat"]
    assert refused == []


@pytest.mark.parametrize("order", ORDERS, ids=lambda each: type(each).__name__)
def test_what_another_node_orders_is_not_done(order: AnyMessage) -> None:
    done, refused = told(PEER, order)
    assert done == []
    assert refused == [("message_refused", PEER, type(order).__name__)]
