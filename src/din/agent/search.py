"""Finding a gateway: multicast by a short-lived child, then unicast candidates, with the reasons.

named      by the operator: these are asked and nobody else, in auto and in unicast
auto       multicast for 5 s, then the last known one and 127.0.0.1:8000. A refused port 5353 ends
           multicast at once.
multicast  only what announces itself
unicast    the last known one, 127.0.0.1:8000

An announcement or a configured address is a hint: each gateway is asked for its cluster first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

from din.domain.gateway_view import ErrorView, GatewayView
from din.domain.malformed import MALFORMED
from din.errors import DinError, Unreachable, UsageError, error_of_code
from din.system.identity import write_atomically
from din.transport.find import Browsed
from din.wire.gateway_url import PLAIN_PORT, gateway_url

BROWSE_MS: Final = 5000
REQUEST_MS: Final = 3000
CANDIDATES_MAX: Final = 16
LAST_GATEWAY_FILE: Final = "gateway.json"
LAST_GATEWAY_BYTES_MAX: Final = 4096
DEFAULT_GATEWAY: Final = f"http://127.0.0.1:{PLAIN_PORT}"
GATEWAY_PATH: Final = "/api/v1/gateway"

DiscoveryMode = Literal["auto", "multicast", "unicast"]


class HttpClient(Protocol):
    """A keep-alive connection to one gateway. Raises DinError, OSError or TimeoutError."""

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = REQUEST_MS,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers, body."""
        ...

    def reset(self) -> None:
        """Give up a connection that may be dead; requests are made on a new one."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[str], HttpClient]
BrowseCall = Callable[[str, int], Awaitable[Browsed]]
REQUEST_FAILURES: Final = (DinError, OSError, TimeoutError)


class Chosen(Struct, frozen=True):
    """A gateway that serves our cluster, and why it is this one."""

    url: str
    how: str


class _LastGateway(Struct):
    """What `gateway.json` holds."""

    url: str


class _Told(Struct):
    """An error as the control API answers it."""

    error: ErrorView


class Search:
    """Looks for a gateway of one cluster, once per call of `find`."""

    def __init__(
        self,
        *,
        cluster: str,
        mode: DiscoveryMode,
        gateways: Sequence[str],
        state_dir: Path,
        connect: Connect,
        browse: BrowseCall,
        report: Callable[..., None],
        secure_gateways: Sequence[str] | None = None,
    ) -> None:
        """`secure_gateways` are those of a node that has joined: it speaks TLS only. None = it has
        not joined. Raises UsageError."""
        self._cluster = cluster
        self._mode = mode
        self._secure = secure_gateways
        scheme = "http" if secure_gateways is None else "https"
        self._named = tuple(gateway_url(each, scheme) for each in gateways)[:CANDIDATES_MAX]
        self._last_path = state_dir / LAST_GATEWAY_FILE
        self._connect = connect
        self._browse = browse
        self._report = report
        self._told_hint = ""
        """Of the last gateway that refused us."""

    async def find(self) -> Chosen:
        """A gateway that serves our cluster. Raises Unreachable listing what was tried."""
        tried: list[str] = []
        self._told_hint = ""
        if self._named and self._mode != "multicast":
            # Another gateway, however near, is not the one that was asked for.
            if chosen := await self._first_serving(self._named, "named by the operator", tried):
                return chosen
            raise Unreachable(
                f"the gateway of cluster {self._cluster!r} that was named is not there: "
                f"{'; '.join(dict.fromkeys(tried))}",
                hint=self._told_hint
                or "start it there, name another with --gateway, or name none to look for one",
            )
        known = "known since this node joined"
        if self._secure and (chosen := await self._first_serving(self._secure, known, tried)):
            return chosen
        how = "unicast"
        if self._mode != "unicast":
            if chosen := await self._by_multicast(tried):
                return chosen
            how = f"unicast, since {tried[-1]}"
            self._report("multicast_found_nothing", reason=tried[-1], mode=self._mode)
        if chosen := await self._first_serving(self._last_resorts(), how, tried):
            return chosen
        raise Unreachable(
            f"no gateway of cluster {self._cluster!r} found: {'; '.join(dict.fromkeys(tried))}",
            hint=self._told_hint
            or "start one with `din up`, or name it with --gateway http://HOST:8000",
        )

    def remember(self, url: str) -> None:
        """Keep the gateway for the next start. A full disk costs that memory only."""
        try:
            write_atomically(self._last_path, msgspec.json.encode(_LastGateway(url)) + b"\n")
        except DinError as error:
            self._report("last_gateway_not_kept", reason=error.message)

    async def _by_multicast(self, tried: list[str]) -> Chosen | None:
        browsed = await self._browse(self._cluster, BROWSE_MS)
        if browsed.gateway is None:
            tried.append(browsed.reason)
            return None
        found = browsed.gateway
        if self._secure is None and found.tls_urls:
            tried.append(f"gateway {found.gateway_id} takes joined machines")
            # What somebody announces is a hint: the token decides.
            self._told_hint = f"join it with a token: din node join - --gateway {found.tls_urls[0]}"
        urls = (found.urls if self._secure is None else found.tls_urls)[:CANDIDATES_MAX]
        announced = f"announced by multicast as gateway {browsed.gateway.gateway_id}"
        return await self._first_serving(urls, announced, tried)

    async def _first_serving(
        self, urls: Sequence[str], how: str, tried: list[str]
    ) -> Chosen | None:
        for url in urls:
            problem = await self._problem_with(url)
            if problem is None:
                return Chosen(url, how)
            tried.append(f"{url} {problem}")
        return None

    async def _problem_with(self, url: str) -> str | None:
        """None when this gateway serves our cluster, else what is wrong with it."""
        try:
            client = self._connect(url)
        except DinError as error:
            self._told_hint = error.hint
            return f"is not asked: {error.message}"
        try:
            status, _, body = await client.request("GET", GATEWAY_PATH, timeout_ms=REQUEST_MS)
            view = msgspec.json.decode(body, type=GatewayView) if status == 200 else None
        except REQUEST_FAILURES as error:
            return f"did not answer ({said(error)})"
        except MALFORMED as error:
            return f"answered something that is no gateway's ({error})"
        finally:
            await client.close()
        if view is None:
            error = error_answered(status, body)
            self._told_hint = error.hint
            return f"refused: {error.message}"
        return None if view.cluster == self._cluster else f"serves cluster {view.cluster!r}"

    def _last_resorts(self) -> tuple[str, ...]:
        if self._mode == "multicast":
            return ()
        last = self._last()
        others = (DEFAULT_GATEWAY,) if self._secure is None else ()
        return tuple(dict.fromkeys((*((last,) if last else ()), *others)))

    def _last(self) -> str | None:
        try:
            with open(self._last_path, "rb") as file:
                raw = file.read(LAST_GATEWAY_BYTES_MAX)
            return gateway_url(msgspec.json.decode(raw, type=_LastGateway).url)
        except FileNotFoundError:
            return None
        except (OSError, *MALFORMED, UsageError) as error:
            self._report("last_gateway_unreadable", reason=said(error))
            return None


def error_answered(status: int, body: bytes) -> DinError:
    """An error answer of a gateway as the error that it was."""
    try:
        view = msgspec.json.decode(body, type=_Told).error
    except MALFORMED:
        return Unreachable(f"the gateway answered with HTTP status {status}")
    return error_of_code(view.code, view.message, view.hint)


def said(error: BaseException) -> str:
    """The words of an error; its kind where it has none."""
    if isinstance(error, DinError):
        return error.message
    return str(error) or type(error).__name__
