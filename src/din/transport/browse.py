"""The child that looks for gateways by multicast DNS: `python -m din.transport.browse`.

It lives for a few seconds, so that the agent itself never carries the multicast library. It writes
one JSON line per gateway to standard output, whatever the cluster, and one `{"error": ...}` line
when multicast is not possible here. Questions are sent as QM: with QU the answer reaches only one
of the sockets that share the port, which costs seconds on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Final

import zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from din.system.network import AddressWatch
from din.transport.announce import SERVICE_TYPE

GATEWAYS_MAX: Final = 64
RESOLVE_MS: Final = 1500
EXIT_UNREACHABLE: Final = 4


class Browse:
    """Collects names that the library reports and prints what they resolve to, once each."""

    def __init__(self) -> None:
        self._names: asyncio.Queue[str] = asyncio.Queue(GATEWAYS_MAX)
        self._seen: set[str] = set()

    def on_change(
        self,
        zeroconf: zeroconf.Zeroconf,  # the library passes these by name
        service_type: str,
        name: str,
        state_change: zeroconf.ServiceStateChange,
    ) -> None:
        """Called by the library, in the event loop."""
        del zeroconf, service_type
        is_new = state_change.name != "Removed" and name not in self._seen
        if is_new and len(self._seen) < GATEWAYS_MAX:
            self._seen.add(name)
            self._names.put_nowait(name)

    async def print_found(self, library: AsyncZeroconf) -> None:
        """Resolve and print for ever; the caller ends it."""
        while True:
            name = await self._names.get()
            info = AsyncServiceInfo(SERVICE_TYPE, name)
            question = zeroconf.DNSQuestionType.QM
            if await info.async_request(library.zeroconf, RESOLVE_MS, question_type=question):
                print_line(found_line(info))
            else:
                self._seen.discard(name)


def found_line(info: AsyncServiceInfo) -> dict[str, object]:
    """What the agent needs to know of one gateway."""
    properties = {
        key.decode(errors="replace"): (value or b"").decode(errors="replace")
        for key, value in info.properties.items()
    }
    port = info.port or 0
    tls_port = properties.get("tls", "")
    addresses = info.parsed_addresses()
    return {
        "cluster": properties.get("cluster", ""),
        "gateway_id": properties.get("gateway", ""),
        "version": properties.get("version", ""),
        "urls": [f"http://{each}:{port}" for each in addresses],
        "tls_urls": [f"https://{each}:{tls_port}" for each in addresses if is_port(tls_port)],
    }


def is_port(text: str) -> bool:
    """Whether a text out of an announcement is the number of a port."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


def print_line(line: dict[str, object]) -> None:
    """One JSON line, at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def browse(interfaces: list[str], timeout_ms: int) -> int:
    """Print gateways until the time is over. Answers the exit code."""
    try:
        library = AsyncZeroconf(interfaces=interfaces, ip_version=zeroconf.IPVersion.V4Only)
    except (OSError, zeroconf.Error) as error:
        print_line({"error": f"multicast DNS on {', '.join(interfaces)} failed: {error}"})
        return EXIT_UNREACHABLE
    search = Browse()
    browser = AsyncServiceBrowser(
        library.zeroconf,
        SERVICE_TYPE,
        handlers=[search.on_change],
        question_type=zeroconf.DNSQuestionType.QM,
    )
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await search.print_found(library)
    except TimeoutError:
        pass
    finally:
        await browser.async_cancel()
        await library.async_close()
    return 0


def main() -> int:
    """Parse the child's arguments and browse."""
    parser = argparse.ArgumentParser(prog="python -m din.transport.browse")
    parser.add_argument("--timeout-ms", type=int, default=5000)
    parser.add_argument("--allow", action="append", default=[], metavar="INTERFACE")
    parser.add_argument("--deny", action="append", default=[], metavar="INTERFACE")
    arguments = parser.parse_args()
    watch = AddressWatch(arguments.allow, arguments.deny)
    interfaces = [
        *(each.address for each in watch.current if ":" not in each.address),
        "127.0.0.1",
    ]
    return asyncio.run(browse(interfaces, arguments.timeout_ms))


if __name__ == "__main__":
    sys.exit(main())
