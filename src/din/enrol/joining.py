"""A machine joins a cluster, or renews its certificate: the steps of docs/decisions/0009.

1. fetch the authority over a connection that proves nothing, and compare it with the token
2. connect anew, verified against that authority, and see that a gateway answers
3. show the token and the signing request; write what comes back, `cluster.json` last: with it the
   node has joined

The private key is made once and is on disk before anything is sent: when an answer is lost, the
same token serves the same key again.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from din.domain.enrolment import Enrolled, JoinOrder, Membership, RenewOrder
from din.domain.malformed import MALFORMED
from din.enrol.exchange import CLOCKS, Channel, foreign
from din.errors import Denied, DinError, Unreachable
from din.system.identity import disk_error
from din.transport.membership import (
    EnrolOrder,
    membership_of,
    read_membership,
    write_enrolled,
)
from din.transport.tls import (
    check_peer,
    client_context,
    files_in,
    pinned_context,
    unverified_context,
)
from din.trust.authority import kept_key, read_secret
from din.trust.requests import check_issued, signing_request
from din.wire.join_token import JoinToken, parse_join_token

SKEW_MS_MAX: Final = 5 * 60 * 1000
"""Half of what certificates begin earlier: beyond it they do not count here, or end too soon."""
AUTHORITY_PATH: Final = "/api/v1/trust/ca"
JOIN_PATH: Final = "/api/v1/trust/join"
RENEW_PATH: Final = "/api/v1/trust/renew"


def join(order: EnrolOrder, now_ms: Callable[[], int]) -> Membership:
    """Join by the first gateway that is the token's. Raises Denied, Unreachable or Unavailable
    with what each of them was."""
    token = parse_join_token(order.token)
    with ThreadPoolExecutor(1) as pool:  # the key gets to the disk while the gateway is looked at
        key = pool.submit(_own_key, Path(order.folder))
        return _first(order.gateways, lambda url: _join_at(url, token, order, key.result, now_ms))


def renew(order: EnrolOrder, now_ms: Callable[[], int]) -> Membership:
    """A new certificate for the key on disk. Raises as `join`."""
    folder = Path(order.folder)
    before = read_membership(folder)
    files = files_in(folder, "node")
    key_pem, authority_pem = read_secret(files.key), _authority_in(files.authority)
    request = signing_request(key_pem).decode()

    def renew_at(url: str) -> Membership:
        with _verified(url, client_context(files)) as channel:
            check_peer(channel.peer(), before.cluster, "gateway")
            body = msgspec.json.encode(RenewOrder(request=request))
            enrolled = _read(channel.ask("POST", RENEW_PATH, body), before.cluster)
        check_issued(enrolled.certificate.encode(), key_pem, authority_pem)
        written = {files.certificate: enrolled.certificate.encode()}
        membership = membership_of(before.node_id, enrolled, now_ms(), is_own=before.is_own)
        write_enrolled(folder, membership, written)
        return membership

    return _first(order.gateways, renew_at)


def _first(urls: tuple[str, ...], attempt: Callable[[str], Membership]) -> Membership:
    """The first gateway by which it works. A refusal weighs more than silence."""
    failures: list[DinError] = []
    for url in urls:
        try:
            return attempt(url)
        except DinError as error:
            failures.append(error)
    if not failures:
        raise Unreachable("no gateway was named", hint="give one: --gateway https://HOST:8443")
    refusals = [each for each in failures if not isinstance(each, Unreachable)]
    worst = (refusals or failures)[0]
    raise type(worst)("; ".join(each.message for each in failures), hint=worst.hint)


def _join_at(
    url: str,
    token: JoinToken,
    order: EnrolOrder,
    key: Callable[[], bytes],
    now_ms: Callable[[], int],
) -> Membership:
    authority = _pinned_authority(url, token, now_ms)
    with _verified(url, pinned_context(authority)) as channel:
        name = channel.peer()
        gateway = check_peer(name, name.cluster if name else "", "gateway")
        key_pem = key()
        join_order = JoinOrder(
            token_id=token.id,
            secret=token.secret,
            request=signing_request(key_pem).decode(),
            node_id=order.node_id,
            name=order.name,
        )
        answer = channel.ask("POST", JOIN_PATH, msgspec.json.encode(join_order))
    enrolled = _read(answer, gateway.cluster)
    check_issued(enrolled.certificate.encode(), key_pem, authority.encode())
    folder = Path(order.folder)
    files = files_in(folder, "node")
    membership = membership_of(order.node_id, enrolled, now_ms())
    written = {
        files.authority: authority.encode(),
        files.certificate: enrolled.certificate.encode(),
    }
    write_enrolled(folder, membership, written)
    return membership


def _pinned_authority(url: str, token: JoinToken, now_ms: Callable[[], int]) -> str:
    """Step 1. Raises Denied when another authority is shown, or when the clocks are too far apart
    for certificates to count."""
    with Channel(url, unverified_context()) as channel:
        pem = channel.ask("GET", AUTHORITY_PATH)
    try:
        text = pem.decode("ascii")
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()
    except ValueError:
        raise Unreachable(f"{url} answered no certificate", hint="is it a gateway?") from None
    if digest != token.authority_sha256:
        raise Denied(
            f"{url} shows another authority than the token names",
            hint="the token is of another cluster, or somebody poses as the gateway; nothing "
            "secret was sent",
        )
    _check_clocks(url, channel.gateway_ms, now_ms())
    return text


def _check_clocks(url: str, gateway_ms: int | None, own_ms: int) -> None:
    if gateway_ms is None or abs(own_ms - gateway_ms) <= SKEW_MS_MAX:
        return
    seconds = (own_ms - gateway_ms) // 1000
    way = "ahead of" if seconds > 0 else "behind"
    raise Denied(f"the clock of this machine is {abs(seconds)} s {way} that of {url}", hint=CLOCKS)


def _verified(url: str, context: ssl.SSLContext) -> Channel:
    """Step 2. Raises Denied when the other side is not certified by the authority."""
    try:
        return Channel(url, context)
    except ssl.SSLCertVerificationError as error:
        raise foreign(url, error) from None


def _own_key(folder: Path) -> bytes:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from error
    return kept_key(files_in(folder, "node").key)


def _read(answer: bytes, cluster: str) -> Enrolled:
    try:
        enrolled = msgspec.json.decode(answer, type=Enrolled)
    except MALFORMED as error:
        raise Unreachable(f"the gateway answered no certificate: {error}") from None
    if enrolled.cluster != cluster:
        raise Denied(f"a gateway of cluster {cluster!r} answers for {enrolled.cluster!r:.80}")
    return enrolled


def _authority_in(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise disk_error(path, error) from error
