"""The gateway's nodes and links as the choice of cuts sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Final

from din.adapters.catalogue import memory_mib
from din.domain.foreign import ForeignModel
from din.domain.node import FleetNode, NodeId, NodeProfile
from din.domain.views import RegisterModel
from din.gateway.nodes.dialable import reach_of
from din.gateway.probing.profiles import device_class
from din.gateway.registration.cutting import Terrain
from din.gateway.registration.foreign import name_and_node
from din.gateway.registration.record import adapter_of
from din.placement.places import NODES_MAX, Device
from din.placement.speeds import assumed_gflops, processor_share
from din.placement.ways import ASSUMED, HERE, SAME_MACHINE, WayFacts, Ways

if TYPE_CHECKING:
    from din.gateway.core import Gateway

BACKEND_DEFAULT: Final = "onnxruntime"
TRUSTED_LABEL: Final = ("trust", "high")


def terrain_of(gateway: Gateway, order: RegisterModel) -> Terrain:
    """Every node that a slice of this model could be placed on now."""
    is_sealed = gateway.vault.seals(order.encrypt)
    leaving = gateway.drains.leaving()
    table = gateway.fleet.table()
    adapters_mib = sum(
        memory_mib(spec)
        for spec in (adapter_of(order.before, "before"), adapter_of(order.after, "after"))
        if spec is not None
    )
    devices: list[Device] = []
    named: dict[str, NodeId] = {}
    for node in gateway.fleet.fleet_nodes():
        profile = node.profile
        named[profile.name] = named[profile.node_id] = profile.node_id
        if node.status != "ready" or profile.node_id in leaving:
            continue
        if is_sealed and not node.takes_grants:
            continue
        if not order.slicing_strategy.backend_map and BACKEND_DEFAULT not in profile.backends:
            continue
        room = float(table.memory_mib_room[table.row(profile.node_id)])
        machine = _processor(gateway.links.machine_of(profile.node_id), profile)
        devices.append(_device(order, node, room / order.workers - adapters_mib, machine))
    ids = [each.node_id for each in devices]
    return Terrain(devices=tuple(devices), ways=ways_of(gateway, ids), named=named)


def ways_of(gateway: Gateway, nodes: Sequence[NodeId]) -> Ways:
    """What is known of the ways between these nodes, and between each and the gateway."""
    known = dict(_same_machine(gateway, nodes))
    for pair, facts in gateway.ways.known().items():
        known[pair] = facts.over(known.get(pair, ASSUMED))
    told = {pair for holding in gateway.deployer.holdings() for pair in holding.relays()}
    return Ways(known=known, undialable=frozenset({*told, *_strangers(gateway, nodes)}))


def roomiest_mib(gateway: Gateway) -> int:
    """Free and not promised memory of the roomiest routable node."""
    table = gateway.fleet.table()
    rows = [row for row in table.rows().tolist() if gateway.fleet.is_routable(table.node_id(row))]
    return int(max((float(table.memory_mib_room[row]) for row in rows), default=0.0))


def _processor(machine: str | None, profile: NodeProfile) -> str:
    """Equal for nodes that share a processor or an accelerator; empty without a link. Where several
    machines have one address, the kind of processor tells some of them apart."""
    kind = profile.accelerator or profile.cpu_model
    return "" if machine is None else f"{machine or HERE}/{kind}"


def _device(order: RegisterModel, node: FleetNode, room_mib: float, machine: str) -> Device:
    profile = node.profile
    asked = order.backend_options.get("threads", "")
    threads = int(asked) if asked.isascii() and asked.isdigit() else None
    return Device(
        node_id=profile.node_id,
        name=profile.name,
        device_class=device_class(profile),
        gflops=assumed_gflops(profile, threads),
        room_mib=room_mib,
        is_trusted=TRUSTED_LABEL in profile.labels.items(),
        watts=node.health.power_w,
        backends=profile.backends,
        machine=machine,
        processor_share=processor_share(profile, threads),
    )


def _strangers(gateway: Gateway, nodes: Sequence[NodeId]) -> Iterator[tuple[NodeId, NodeId]]:
    """Pairs of which neither can dial the other: a link serves both directions."""
    reaches = [
        reach_of(
            gateway.fleet.addresses(node),
            gateway.links.machine_of(node),
            is_joined=gateway.roll.is_certified(node),
        )
        for node in nodes
    ]
    if all(each.elsewhere for each in reaches) and len({each.is_joined for each in reaches}) < 2:
        return
    for (one, near), (other, far) in combinations(zip(nodes, reaches, strict=True), 2):
        if not near.answers(far) and not far.answers(near):
            yield one, other
            yield other, one


def _same_machine(
    gateway: Gateway, nodes: Iterable[NodeId]
) -> Iterator[tuple[tuple[NodeId, NodeId], WayFacts]]:
    """Ways between nodes of one machine, and from the gateway to those on its own."""
    machines: dict[str, list[NodeId]] = {}
    for node_id in nodes:
        machine = gateway.links.machine_of(node_id)
        if machine is not None:
            machines.setdefault(machine, []).append(node_id)
    for machine, members in machines.items():
        if not machine:
            yield from (((HERE, node_id), SAME_MACHINE) for node_id in members)
        if len(members) <= NODES_MAX:
            yield from ((pair, SAME_MACHINE) for pair in permutations(members, 2))


def foreign_signature(gateway: Gateway, order: RegisterModel) -> ForeignModel:
    """Of the model of a server that an order names. Raises NotFound, Conflict."""
    name, node = name_and_node(order.foreign)
    members = [gateway.fleet.find(node)] if node else gateway.fleet.members()
    nodes = [(each.profile.node_id, each.profile.name) for each in members if each.status != "lost"]
    return gateway.foreign.signature(name, nodes)
