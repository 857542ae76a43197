"""The gateway's answer to a registration: cluster, protocol version, membership, terms. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from din.discovery.events import (
    MembershipInstruction,
    NodeRegistered,
    RefuseNode,
    RenameNode,
    WarnOfNode,
)
from din.discovery.membership import Membership
from din.domain.node import NodeProfile
from din.wire.registration import (
    PROTOCOL_VERSIONS,
    WARNING_BYTES_MAX,
    WARNING_COUNT_MAX,
    Admission,
    Refusal,
    Registration,
    RegistrationAnswer,
    negotiate,
)

SKEW_MS_WARN: Final = 60_000
"""Nothing here depends on a node's clock, but people read its log next to others."""


class Terms(Struct, frozen=True, kw_only=True):
    """What the gateway tells every node that it admits."""

    cluster: str
    gateway_id: str
    links: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    protocol_versions: tuple[int, ...] = PROTOCOL_VERSIONS


def admit(
    membership: Membership,
    now_ms: int,
    registration: Registration,
    terms: Terms,
    skew_ms: int | None = None,
) -> tuple[RegistrationAnswer, tuple[MembershipInstruction, ...]]:
    """Answer a registration; the instructions are to be carried out before the answer is sent.
    `skew_ms` is how far the node's clock is ahead of ours, where it said what time it has."""
    profile = registration.profile
    version = negotiate(terms.protocol_versions, profile.protocol_versions)
    if registration.cluster != terms.cluster:
        return _wrong_cluster(registration, terms), ()
    if version is None:
        return _no_common_version(profile, terms), ()
    orders = membership.handle(now_ms, NodeRegistered(profile))
    for order in orders:
        if isinstance(order, RefuseNode):
            return _refusal(order.reason, order.hint, terms), orders
    member = membership.member(profile.node_id)
    if skew_ms is not None and abs(skew_ms) >= SKEW_MS_WARN:
        orders = (*orders, WarnOfNode(profile.node_id, _skew_warning(skew_ms)))
    own = tuple(each.warning for each in orders if isinstance(each, RenameNode | WarnOfNode))
    warnings = tuple(_cut(each) for each in (*own, *terms.warnings))
    answer = Admission(
        name=member.profile.name if member else profile.name,
        gateway_id=terms.gateway_id,
        heartbeat_interval_ms=membership.schedule.interval_ms,
        heartbeat_jitter_ms=membership.schedule.jitter_ms,
        links=terms.links,
        protocol_version=version,
        warnings=warnings[:WARNING_COUNT_MAX],
    )
    return answer, orders


def _skew_warning(skew_ms: int) -> str:
    way = "ahead of" if skew_ms > 0 else "behind"
    seconds = abs(skew_ms) // 1000
    return f"its clock is {seconds} s {way} the gateway's; run there: timedatectl set-ntp true"


def _wrong_cluster(registration: Registration, terms: Terms) -> Refusal:
    return _refusal(
        f"this gateway serves cluster {terms.cluster!r}, the node asked for "
        f"{registration.cluster!r}",
        f"start the node with --cluster {terms.cluster}, or name another gateway",
        terms,
    )


def _no_common_version(profile: NodeProfile, terms: Terms) -> Refusal:
    return _refusal(
        f"no common protocol version: the node speaks {_listed(profile.protocol_versions)}, "
        f"the gateway {_listed(terms.protocol_versions)}",
        "update the older of the two",
        terms,
    )


def _refusal(reason: str, hint: str, terms: Terms) -> Refusal:
    return Refusal(
        reason=_cut(reason),
        hint=_cut(hint),
        gateway_id=terms.gateway_id,
        cluster=terms.cluster,
        protocol_versions=terms.protocol_versions,
    )


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(str(each) for each in versions)


def _cut(text: str) -> str:
    """At most as many bytes as the answer's field may have."""
    encoded = text.encode()
    if len(encoded) <= WARNING_BYTES_MAX:
        return text
    return encoded[: WARNING_BYTES_MAX - 3].decode(errors="ignore") + "..."
