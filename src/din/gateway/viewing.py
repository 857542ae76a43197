"""From the gateway's rooms to what people see. Reads, never changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from din.discovery.membership import Member
from din.domain.backend_names import unknown_backends
from din.domain.cuts import ways_of_choice
from din.domain.deployment import Replica
from din.domain.foreign import ForeignServer, usable
from din.domain.model import Partition, Slice
from din.domain.node import NodeId
from din.domain.probe import PROBE
from din.domain.strategy import dotted
from din.domain.views import (
    ForeignServerView,
    ModelView,
    NodeView,
    ReplicaView,
    SliceView,
    StuckSlice,
)
from din.errors import NotFound
from din.gateway.core import Gateway
from din.gateway.deployment.holding import Holding
from din.gateway.nodes.derating import slowdown_words
from din.gateway.registration.record import ModelRecord


def node_view(
    gateway: Gateway, member: Member, *, is_whole: bool, stuck: tuple[StuckSlice, ...] | None = None
) -> NodeView:
    """One node with what it holds; `stuck` without it lists names alone, as planned last."""
    profile = member.profile
    age_ms = int(gateway.effects.clock()) - member.seen_ms
    return NodeView(
        node_id=profile.node_id,
        name=profile.name,
        status=member.status,
        reason=member.reason,
        device_type=profile.device_type,
        health=member.health,
        health_score=round(member.health_score, 3),
        heartbeat_age_ms=max(age_ms, 0),
        memory_mib=profile.memory_mib,
        memory_mib_reserved=gateway.promised_mib(profile.node_id),
        slices=_slices_on(gateway, profile.node_id),
        address=next((each for each in profile.addresses if each.startswith("tcp:")), ""),
        profile=profile if is_whole else None,
        engines=gateway.links.engines.of(profile.node_id) if is_whole else (),
        warnings=_warnings_of(gateway, member),
        foreign=tuple(map(_server_view, gateway.foreign.servers(profile.node_id))),
        is_draining=gateway.drains.is_leaving(profile.node_id),
        is_drain_forced=gateway.drains.is_forced(profile.node_id),
        is_insecure_network=profile.is_insecure_network,
        sandbox_level=profile.sandbox_level,
        is_revoked=gateway.roll.is_revoked(profile.node_id),
        stuck=_stuck_on(gateway, profile.node_id) if stuck is None else stuck,
        quarantined=_quarantined_on(gateway, profile.node_id),
        crashes=gateway.crashes.of_node(profile.node_id) if is_whole else (),
    )


def _warnings_of(gateway: Gateway, member: Member) -> tuple[str, ...]:
    slowdown = slowdown_words(member.health)
    warnings = gateway.fleet.warnings_of(member.profile.node_id)
    return (*warnings, slowdown) if slowdown else warnings


def _server_view(server: ForeignServer) -> ForeignServerView:
    return ForeignServerView(
        url=server.url,
        name=server.name,
        version=server.version,
        is_up=not server.reason,
        reason=server.reason,
        models=tuple(usable((server,))),
        unready={each.name: each.reason for each in server.models if each.reason},
        container=server.container,
    )


def slice_label(holding: Holding, index: int) -> str:
    """How people name one slice of one model, or a probe."""
    part, model_id = holding.partition.slices[index], holding.record.manifest.model_id
    return model_id if part.backend == PROBE else f"{model_id}/{part.name}"


def _quarantined_on(gateway: Gateway, node_id: NodeId) -> tuple[StuckSlice, ...]:
    return tuple(
        StuckSlice(slice=slice_label(holding, index), reasons=(reason,))
        for holding in gateway.deployer.holdings()
        for index, reason in holding.quarantined(node_id)
    )


def _stuck_on(gateway: Gateway, node_id: NodeId) -> tuple[StuckSlice, ...]:
    if not gateway.drains.is_leaving(node_id):
        return ()
    return tuple(
        StuckSlice(slice=slice_label(holding, index))
        for holding in gateway.deployer.holdings()
        for index in holding.indexes_on(node_id)
        if index in holding.stuck
    )


def plan_notes(record: ModelRecord, indexes: Collection[int]) -> tuple[str, ...]:
    """What a plan says beside its placements: why it is cut so, how tensors cross, and what may not
    go everywhere."""
    trust = _trust_notes(record.partition, indexes)
    return (*_choice_notes(record), *_crossing_notes(record), *trust)


def _crossing_notes(record: ModelRecord) -> tuple[str, ...]:
    check, compression = record.precision, record.manifest.compression
    notes: list[str] = []
    if check is not None:
        notes.append(f"precision at the cuts: {check.kind}; {check.reason}")
    if compression != "none":
        notes.append(f"compression at the cuts: {compression}, between different machines")
    return tuple(notes)


def _trust_notes(partition: Partition, indexes: Collection[int]) -> tuple[str, ...]:
    parts = [part for part in partition.slices if part.index in indexes]
    sensitive = ", ".join(part.name for part in parts if part.is_sensitive)
    sealed = ", ".join(part.name for part in parts if part.is_sealed)
    notes: list[str] = []
    if sensitive:
        notes.append(f"only nodes with trust: high may hold the sensitive slices {sensitive}")
    if sealed:
        notes.append(f"sealed, opened in memory by nodes that hold a lease: {sealed}")
    return tuple(notes)


def _choice_notes(record: ModelRecord) -> tuple[str, ...]:
    """Of cuts that DIN chose: the reason, and what it rests on."""
    choice = record.choice
    if choice is None:
        return ()
    how = {
        "profile": "times measured on such devices",
        "flops": "times estimated from work, no device was measured",
        "both": "times partly measured, partly estimated from work",
    }[choice.times_from]
    exact = "" if choice.is_exact else "; a better choice may exist"
    basis = f"{choice.nodes_considered} nodes and {choice.blocks} blocks considered, {how}{exact}"
    lines = (f"cuts by {choice.objective}: {choice.reason}", basis)
    return (*lines, *ways_of_choice(choice), *choice.notes)


def _slices_on(gateway: Gateway, node_id: NodeId) -> tuple[str, ...]:
    return tuple(
        slice_label(holding, index)
        for holding in gateway.deployer.holdings()
        for index in holding.ready_on(node_id)
    )


def model_view(gateway: Gateway, record: ModelRecord) -> ModelView:
    """One model version with its replicas; what is only planned (dry run) has none."""
    manifest = record.manifest
    holding = next((each for each in gateway.deployer.holdings() if each.record is record), None)
    deployment = holding.serving.deployment if holding is not None else None
    found = holding.replicas() if holding is not None else ()
    slices = tuple(_slice_view(gateway, part, found, holding) for part in record.partition.slices)
    return ModelView(
        model_id=manifest.model_id,
        version=manifest.version,
        state=deployment.state if deployment is not None else "placing",
        reason=deployment.reason if deployment is not None else "",
        hint=holding.hint if holding is not None else "",
        error_code=holding.error_code if holding is not None else "",
        serving_version=_serving_version(gateway, manifest.model_id),
        epoch=(deployment.epoch.deployment, deployment.epoch.revision) if deployment else (0, 0),
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        slices=slices,
        cuts=record.cuts,
        manifest=manifest,
        warnings=record.warnings,
        notes=(*record.notes, *_backend_notes(gateway, record)),
        choice=record.choice,
        crashes=gateway.crashes.of_model(manifest.model_id),
        tenant=manifest.tenant,
        verification=record.verification,
        precision=record.precision,
        rewrite=record.rewrite,
        is_seal_due=not manifest.is_encrypted and gateway.models.builder.seals_order(record.order),
    )


def _backend_notes(gateway: Gateway, record: ModelRecord) -> tuple[str, ...]:
    """Of backends that nobody knows, as long as no node brings them."""
    strategy = record.order.slicing_strategy
    if not any(unknown_backends(strategy)):
        return ()
    offered = {name for each in gateway.fleet.members() for name in each.profile.backends}
    faults = unknown_backends(strategy, offered)
    return tuple(f"{dotted(each.path)}: {each.message}; {each.hint}" for each in faults)


def _slice_view(
    gateway: Gateway, part: Slice, found: Iterable[Replica], holding: Holding | None
) -> SliceView:
    return SliceView(
        index=part.index,
        name=part.name,
        kind=part.kind,
        slice_id=part.slice_id,
        operators=part.operators,
        bytes_weights=part.bytes_weights,
        memory_mib=part.memory_mib,
        device_type=part.device_type,
        backend=part.backend,
        is_sensitive=part.is_sensitive,
        is_sealed=part.is_sealed,
        replicas=tuple(
            ReplicaView(
                node=gateway.fleet.name_of(each.node_id),
                state=each.state,
                reason=each.reason or _held_back(gateway, each, holding),
                memory_mib=holding.measured_mib(each.slice_index, each.node_id)
                if holding is not None
                else None,
            )
            for each in found
            if each.slice_index == part.index
        ),
    )


def _held_back(gateway: Gateway, replica: Replica, holding: Holding | None) -> str:
    """Why a ready replica gets no requests, if so."""
    if holding is None:
        return ""
    other = holding.serving.held_back_by(replica.slice_index, replica.node_id)
    if other is None:
        return ""
    return (
        f"in reserve: integers come out otherwise there than on {gateway.fleet.name_of(other)}, "
        "which serves"
    )


def _serving_version(gateway: Gateway, model_id: str) -> str:
    try:
        serving = gateway.models.serving(model_id, None)
    except NotFound:
        # Only planned (dry run), or being removed.
        return ""
    return serving.deployment.manifest.version if serving.is_available else ""
