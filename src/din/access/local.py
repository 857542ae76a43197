"""Whether a request that shows no key was made by a program of this machine, or only passed on by
one: a browser does what any web page asks of it, and a proxy what anybody in its network asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

_BY_PROXIES: Final = (b"forwarded", b"x-forwarded-for")
_OTHER_SITES: Final = (b"cross-site", b"same-site")
SHOWN_MAX: Final = 80
HOSTS_KEPT: Final = 64


def passed_on(headers: Mapping[bytes, bytes], *, is_here: bool) -> str:
    """Who is really behind a request, in words; empty for a program that asks for itself. `is_here`
    = it came by the loopback address, where no name but `localhost` leads without a trick."""
    for name in _BY_PROXIES:
        if name in headers:
            return f"a proxy passed it on for {_shown(headers[name])}"
    host, origin = headers.get(b"host"), headers.get(b"origin")
    if origin is not None and (host is None or origin.partition(b"://")[2] != host):
        return f"a web page of {_shown(origin)} sent it"
    if headers.get(b"sec-fetch-site") in _OTHER_SITES:
        return "a web page of another site sent it"
    if is_here and host and not _is_own(host.decode("latin-1")):
        # A name of somebody else's may lead here as well, and his page may then read the answer.
        return f"it is for the host {_shown(host)}"
    return ""


@lru_cache(maxsize=HOSTS_KEPT)  # each request names one, nearly always the same
def _is_own(host: str) -> bool:
    name = host.partition("]")[0].removeprefix("[") if host[0] == "[" else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def _shown(text: bytes) -> str:
    return repr(text[:SHOWN_MAX].decode("latin-1"))
