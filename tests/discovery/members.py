"""Nodes, and a driver that honours wake-ups, for the tests of membership."""

from din.discovery.events import LinkOpened, NodeRegistered, Woke
from din.discovery.membership import Membership
from din.domain.node import NodeHealth, NodeId, NodeProfile
from din.wire.heartbeat import Heartbeat

NODE_A = NodeId("000000000000000a")
NODE_B = NodeId("000000000000000b")


def profile(node_id=NODE_A, session=1, name="edge", **more) -> NodeProfile:
    return NodeProfile(
        node_id=node_id,
        session=session,
        name=name,
        device_type="x86_64-cpu",
        cpu_model="test",
        cpu_isa=(),
        cpu_cores=1.0,
        memory_mib=100,
        **more,
    )


class Play:
    """Time moves by `to` and `beat_for`; every instruction is kept."""

    def __init__(self, membership: Membership | None = None) -> None:
        self.membership = membership or Membership()
        self.now_ms = 0
        self.counter = 0
        self.log = []

    def do(self, event) -> tuple:
        out = self.membership.handle(self.now_ms, event)
        self.log.extend(out)
        return out

    def to(self, now_ms: int) -> list:
        """Wake the machine whenever it asks, up to now."""
        out = []
        while (due := self.membership.next_wakeup_ms()) is not None and due <= now_ms:
            self.now_ms = max(self.now_ms, due)
            out.extend(self.do(Woke()))
        self.now_ms = now_ms
        return out

    def pass_ms(self, duration_ms: int) -> list:
        return self.to(self.now_ms + duration_ms)

    def beat(self, node_id=NODE_A, session=1, counter=None, health=None) -> tuple:
        self.counter += 1
        number = self.counter if counter is None else counter
        return self.do(Heartbeat(node_id, session, number, health or NodeHealth()))

    def beat_for(self, duration_ms: int, *nodes) -> list:
        out = []
        for _ in range(duration_ms // 3000):
            out.extend(self.pass_ms(3000))
            for node_id in nodes or (NODE_A,):
                out.extend(self.beat(node_id))
        return out

    def join(self, node_id=NODE_A, session=1, name="edge", link_id=1) -> list:
        first = self.do(NodeRegistered(profile(node_id, session, name)))
        return [*first, *self.do(LinkOpened(node_id, session, link_id))]

    def status(self, node_id=NODE_A) -> str | None:
        member = self.membership.member(node_id)
        return member.status if member else None
