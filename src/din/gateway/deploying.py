"""How the gateway's deployer is put together, and who shares what it deploys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from din.gateway.deployment.deployer import Deployer
from din.gateway.deployment.isolation import Isolation
from din.gateway.deployment.measured import MemoryBook
from din.gateway.registration.record import ModelRecord
from din.gateway.routes.serving import Serving

if TYPE_CHECKING:
    from din.gateway.core import Gateway


def deployer_of(gateway: Gateway) -> Deployer:
    """With the rooms that are there already."""
    return Deployer(
        epochs=gateway.epochs,
        fleet=gateway.fleet,
        drains=gateway.drains,
        sender=gateway.links,
        is_local=gateway.links.is_local,
        clock=gateway.effects.clock,
        orders=gateway.orders,
        memory=MemoryBook(lambda: [each.profile for each in gateway.fleet.members()]),
        report=gateway.effects.report,
        timeouts=gateway.timeouts,
    )


def isolation_of(gateway: Gateway) -> Isolation:
    """As the operator wants it."""

    def record_of(serving: Serving) -> ModelRecord:
        manifest = serving.deployment.manifest
        return gateway.models.record(manifest.model_id, manifest.version)

    return Isolation(
        gateway.deployer,
        record_of,
        gateway.effects.clock,
        gateway.effects.report,
        is_on=gateway.effects.isolate == "tenant",
    )
