"""What `din doctor` hears from the gateway, and where that listens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from din import version
from din.cli.asking import ask
from din.cli.check import Check, Place, running_gateway
from din.cli.doctor_disk import CLOCK_FIX
from din.cli.doctor_versions import node_versions_row
from din.cli.node import insecure_names
from din.cli.sources import collect, load_gateway, load_node
from din.client.client import Client, decode_answer
from din.config import is_loopback
from din.config_forms import Section
from din.domain.audit import AuditCheck
from din.domain.gateway_view import GatewayView, SlicingCacheView
from din.domain.keys import KeyList, KeyView
from din.domain.views import ModelList, NodeList
from din.errors import Denied, DinError, NotFound, Unauthenticated, Unreachable, UsageError
from din.system.clock import wall_clock_ms

ANSWER_MS: Final = 4000
"""A gateway that has nothing to do but say that it lives takes milliseconds."""
SKEW_WARN_S: Final = 60
SKEW_BAD_S: Final = 600
RECENTLY: Final = timedelta(days=7)
"""A key that was used so shortly before it expired is probably still shown by somebody."""
NAMES_MAX: Final = 5
NODES_ASKED_MAX: Final = 16
HIT_RATIO_MIN: Final = 0.8
LOOK_UPS_MIN: Final = 10
"""The first time that a model is cut is no hit: fewer look-ups say nothing."""
SECURE_FIX: Final = "din down && din up --host ADDRESS"
JOIN_FIX: Final = "din node join -, then start it without --insecure-network"


def check_listening(place: Place | None, environment: Mapping[str, str]) -> Check:
    """Where the gateway of this machine listens, or would."""
    running = running_gateway(place) if place else None
    if running is None:
        config = load_gateway({}, environment)
        tls = f", TLS on {config.host}:{config.tls_port}" if config.is_tls else ""
        seen = f"no gateway runs here; it would listen on {config.plain_host}:{config.port}{tls}"
        return Check("listening", "ok", seen)
    host = urlsplit(running.url).hostname or ""
    reach = "this machine only" if is_loopback(host) else "OFF LOOPBACK, in plain text"
    shown = [f"{running.url} ({reach})", *running.tls_urls, *running.links]
    if is_loopback(host):
        return Check("listening", "ok", ", ".join(shown))
    return Check("listening", "fail", ", ".join(shown), SECURE_FIX)


def check_tls(place: Place | None, environment: Mapping[str, str]) -> Check:
    """Whether other machines can come by TLS, and where."""
    running = running_gateway(place) if place else None
    if running is not None:
        port = urlsplit(running.tls_urls[0]).port if running.tls_urls else 0
    else:
        config = load_gateway({}, environment)
        port = config.tls_port if config.is_tls else 0
    if not port:
        who = "no other machine can join" if place else "no gateway is on this machine"
        return Check("tls", "ok", f"off: {who}")
    return Check("tls", "ok", f"TLS 1.3 on port {port}")


def check_insecure(place: Place | None, environment: Mapping[str, str]) -> Check:
    """Whether plain text off loopback is allowed by a setting, or spoken by the gateway here."""
    sections: tuple[Section, ...] = ("gateway", "node")
    for section, config in zip(
        sections, (load_gateway({}, environment), load_node({}, environment)), strict=True
    ):
        if config.insecure_network:
            source = collect(section, {}, environment).values["insecure_network"].source
            seen = f"INSECURE: insecure_network is set for the {section} (by {source}): plain text"
            fix = f"unset {source}" if source in environment else _line_out(source)
            return Check("insecure switches", "fail", seen, fix)
    running = running_gateway(place) if place else None
    if running is not None and not is_loopback(urlsplit(running.url).hostname or ""):
        seen = "INSECURE: the gateway runs with --insecure-network: plain text, nobody is asked"
        return Check("insecure switches", "fail", seen, SECURE_FIX)
    return Check("insecure switches", "ok", "none is set")


def _line_out(source: str) -> str:
    return f"sed -i /insecure_network/d {source.partition(' (')[0]}"


def check_gateway(gateway: str | None) -> Iterator[Check]:
    """What the gateway says: of itself, of nodes, keys and the audit log."""
    url = ""
    try:
        with ask(gateway) as client:
            url = client.url
            yield check_clock(client)
            name = "gateway"
            try:
                view = client.gateway()
                yield gateway_row(view, client.url)
                yield require_key_row(view)
                yield slicing_cache_row(view.slicing_cache)
                name = "nodes"
                nodes = client.nodes()
                yield nodes_row(nodes)
                yield insecure_nodes_row(nodes)
                yield _node_versions(client, nodes)
                name = "api keys"
                yield from _administrator_rows(client)
            except Denied as error:
                yield Check(name, "warn", error.message, _key_fix(error))
    except DinError as error:
        yield Check("gateway", "fail", error.message, gateway_fix(url, error))


def _key_fix(error: Denied) -> str:
    """A key for who shows none that counts; another one for who may not see this."""
    if isinstance(error, Unauthenticated):
        return "din doctor --key-file FILE"
    return "din key create doctor --scope admin --expires 1h --save FILE, on the gateway's machine"


def gateway_fix(url: str, error: DinError) -> str:
    """Start one where none is; where another program or machine answers or should, look there."""
    parts = urlsplit(url)
    if isinstance(error, UsageError):
        return "din config show"  # a setting, not the gateway
    if not isinstance(error, Unreachable):
        if "date -u" in error.hint:
            return CLOCK_FIX
        return f"ss -ltnp 'sport = :{parts.port}'" if parts.port else "din config show"
    if is_loopback(parts.hostname or ""):
        return "din up"
    return f"ssh {parts.hostname} din doctor"


def check_clock(client: Client) -> Check:
    """This machine's clock against the gateway's, by the Date of an answer. Raises DinError."""
    answer = client.call("GET", "/v2/health/live", timeout_ms=ANSWER_MS)
    date = answer.headers.get("date", "")
    try:
        gateway_s = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Check("clock", "warn", "the gateway did not say what time it is", "date -u")
    return clock_row(wall_clock_ms() / 1000 - gateway_s)


def clock_row(skew_s: float) -> Check:
    """Certificates count by clocks; the header counts whole seconds."""
    way = "ahead of" if skew_s > 0 else "behind"
    if abs(skew_s) <= 2:
        return Check("clock", "ok", "as the gateway's, to 2 s")
    seen = f"{abs(skew_s):.0f} s {way} the gateway's"
    if abs(skew_s) <= SKEW_WARN_S:
        return Check("clock", "ok", seen)
    return Check("clock", "fail" if abs(skew_s) > SKEW_BAD_S else "warn", seen, CLOCK_FIX)


def gateway_row(view: GatewayView, url: str) -> Check:
    """Which gateway answers, with which version."""
    nodes = f"{view.nodes} node" + ("" if view.nodes == 1 else "s")
    seen = f"{view.cluster} at {url}, {nodes}, found by {view.discovery_mode}"
    if view.is_insecure_network:
        return Check("gateway", "fail", f"{seen}, INSECURE: plain text off loopback", SECURE_FIX)
    if view.version != version.__version__:
        seen += f"; it is version {view.version}, this is {version.__version__}"
        return Check("gateway", "warn", seen, f"pip install din-network=={view.version}")
    return Check("gateway", "ok", seen)


def insecure_nodes_row(view: NodeList) -> Check:
    """Which nodes, on whatever machine, were started with --insecure-network."""
    insecure = insecure_names(view)
    if not insecure:
        return Check("insecure nodes", "ok", "none")
    seen = f"INSECURE: plain text, nobody is asked, at {', '.join(insecure)}"
    return Check("insecure nodes", "fail", seen, f"on the machine of {insecure[0]}: {JOIN_FIX}")


def unsealed_row(view: ModelList) -> Check:
    """Which models lie on disks in plain form though they would be sealed today."""
    due = [each.model_id for each in view.items if each.is_seal_due]
    if not due:
        return Check("unsealed models", "ok", "none that should be sealed")
    seen = (
        f"{', '.join(_shortened(due))}: registered when no other machine could join; register again"
    )
    return Check("unsealed models", "warn", seen, f"din model inspect {due[0]}")


def nodes_row(view: NodeList) -> Check:
    """Whether nodes are ready, and why the others are not."""
    # Those that were thrown out are away for good, as somebody wanted.
    nodes = [node for node in view.items if not node.is_revoked]
    if not nodes:
        return Check("nodes", "warn", "none has joined", "din node start --name edge-1")
    absent = [node for node in nodes if node.status != "ready"]
    away = [f"{node.name} is {node.status}: {node.reason}" for node in absent]
    ready = sum(node.status == "ready" for node in nodes)
    seen = "; ".join([f"{ready} of {len(nodes)} ready", *_shortened(away)])
    if ready == len(nodes):
        return Check("nodes", "ok", seen)
    return Check("nodes", "warn", seen, "din node list")


def _node_versions(client: Client, view: NodeList) -> Check:
    """Lists hold no versions: each node is asked for, a few of many."""
    nodes = [node for node in view.items if not node.is_revoked]
    found: dict[str, str] = {}
    for node in nodes[:NODES_ASKED_MAX]:
        with suppress(NotFound):  # it was forgotten just now
            profile = client.node(node.node_id).profile
            if profile is not None:
                found[node.name] = profile.versions.get("din", "none")
    return node_versions_row(found, len(nodes))


def require_key_row(view: GatewayView) -> Check:
    """Whether programs on the gateway's machine are asked for a key."""
    if view.is_key_required:
        return Check("require_key", "ok", "on: programs on the gateway's machine show a key too")
    seen = "off: every program on the gateway's machine may do everything"
    return Check("require_key", "ok", seen)


def slicing_cache_row(view: SlicingCacheView | None) -> Check:
    """Whether cuts of models are mostly known, once enough were asked for."""
    if view is None:
        return Check("slicing cache", "ok", "off")
    used = f"{view.nbytes / 1e6:.0f} of {view.nbytes_max / 1e6:.0f} MB"
    if view.hit_ratio is None:
        return Check("slicing cache", "ok", f"nothing was looked up yet; {used}")
    looked_up = view.hits + view.misses
    seen = f"{view.hits} of {looked_up} look-ups were known ({view.hit_ratio:.2f}); {used}"
    if view.hit_ratio >= HIT_RATIO_MIN or looked_up < LOOK_UPS_MIN:
        return Check("slicing cache", "ok", seen)
    seen += f"; below {HIT_RATIO_MIN}: too many variants of models (qat, int8, fp16)"
    if view.evictions:
        seen += f", {view.evictions} went for lack of room"
        larger = 2 * view.nbytes_max // 1_000_000
        fix = f"din down && din up --slicing-cache-enabled --slicing-cache-size-mb {larger}"
        return Check("slicing cache", "warn", seen, fix)
    return Check("slicing cache", "warn", seen, "din model list")


def _administrator_rows(client: Client) -> Iterator[Check]:
    keys = decode_answer(client.call("GET", "/api/v1/keys"), KeyList)
    audit = decode_answer(client.call("GET", "/api/v1/audit/check"), AuditCheck)
    models = client.models()
    yield keys_row(keys.items, datetime.now(UTC))
    yield audit_row(audit)
    yield unsealed_row(models)


def keys_row(keys: tuple[KeyView, ...], now: datetime) -> Check:
    """Keys that never end, and keys that ended while somebody used them."""
    active = [each for each in keys if each.state == "active"]
    seen = f"{len(active)} of {len(keys)} active" if keys else "none"
    ended = [each.name for each in keys if _ended_in_use(each, now)]
    if ended:
        seen += f"; expired within days of their last use: {', '.join(_shortened(ended))}"
        return Check("api keys", "warn", seen, f"din key create {ended[0]} --scope SCOPE")
    endless = [each for each in active if each.expires_at is None]
    if endless:
        names = ", ".join(_shortened([each.name for each in endless]))
        return Check("api keys", "warn", f"{seen}; never end: {names}", _replacing(endless[0]))
    return Check("api keys", "ok", seen)


def _replacing(key: KeyView) -> str:
    scopes = " ".join(f"--scope {scope}" for scope in key.scopes)
    return f"din key create {key.name}-2 {scopes} --tenant {key.tenant} --expires 90d"


def _ended_in_use(key: KeyView, now: datetime) -> bool:
    if key.state != "expired" or key.used_at is None or key.expires_at is None:
        return False
    ended, used = datetime.fromisoformat(key.expires_at), datetime.fromisoformat(key.used_at)
    return ended - used < RECENTLY and now - ended < RECENTLY


def audit_row(check: AuditCheck) -> Check:
    """Whether the audit log's chain is whole."""
    if check.is_whole:
        seen = f"lines {check.first_seq} to {check.last_seq} are whole, head {check.head_sha256}"
        return Check("audit log", "ok", seen)
    return Check("audit log", "fail", f"not whole: {check.problems[0]}", "din audit verify")


def _shortened(names: list[str]) -> list[str]:
    more = [f"{len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else []
    return [*names[:NAMES_MAX], *more]


def gateway_place(found: list[Place]) -> Place | None:
    """The gateway of this machine."""
    return next((each for each in found if each.role == "gateway"), None)
