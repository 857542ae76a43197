"""The node of this user on this machine gets its certificate from the gateway as that starts.

No token: who runs the gateway can read the authority's key, and a token would prove no more. All
else is as for any machine: the authority binds its id to its key, the certificate ends in a day,
and the node renews it by mutual TLS. The key is made here, beside the authority's, since the agent
imports nothing that could, and a child for it would hold up the start.

Where nobody else can reach the gateway the node needs no certificate: `cluster.json` goes, and the
key stays for the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from din.config import GatewayConfig, is_loopback
from din.config_forms import default_node_name
from din.errors import Conflict, DinError
from din.system.identity import claim_directory, disk_error
from din.transport.membership import (
    FILE,
    FOLDER,
    has_joined,
    membership_of,
    read_membership,
    write_enrolled,
)
from din.transport.tls import files_in

if TYPE_CHECKING:
    from din.bootstrap.trust import GatewayTrust
    from din.gateway.nodes.enrolment import Enrolment

Report = Callable[..., None]


async def settle_own_node(
    config: GatewayConfig,
    host_name: str,
    trust: GatewayTrust | None,
    enrolment: Enrolment | None,
    report: Report,
) -> bool:
    """Give the own node a certificate, or take it out of use on loopback. Whether it has one now;
    what goes wrong is reported, and the node stays as it is."""
    place = Path(config.own_node_dir)
    folder = place / FOLDER
    try:
        if has_joined(folder) and not read_membership(folder).is_own:
            return True  # by a token, perhaps another cluster's: that is its user's choice
        with claim_directory(place, "din gateway, for its own node") as claim:
            if trust is None or enrolment is None or is_loopback(config.host):
                _forget(folder)
                return False
            node_id = claim.next_identity().node_id
            name = config.own_node_name or default_node_name(host_name)
            await _enrol(folder, node_id, name, trust, enrolment)
    except Conflict:
        report("own node runs", has_certificate=has_joined(folder))
    except DinError as error:
        report("own node not enrolled", reason=error.message, hint=error.hint)
    return has_joined(folder)


async def _enrol(
    folder: Path, node_id: str, name: str, trust: GatewayTrust, enrolment: Enrolment
) -> None:
    from din.system.clock import wall_clock_ms
    from din.trust.authority import kept_key
    from din.trust.requests import signing_request

    files = files_in(folder, "node")
    _make(folder)
    request = signing_request(kept_key(files.key)).decode()
    enrolled = await enrolment.enrol_own(request, node_id, name)
    written = {
        files.authority: trust.authority.pem,
        files.certificate: enrolled.certificate.encode(),
    }
    membership = membership_of(node_id, enrolled, wall_clock_ms(), is_own=True)
    write_enrolled(folder, membership, written)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from error


def _forget(folder: Path) -> None:
    """Raises Unavailable or Denied."""
    path = folder / FILE
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise disk_error(path, error) from error
