"""Networks of their own for gateway and nodes: who reaches whom is decided here, by the kernel.

Each island is a network namespace. The calling thread moves onto the gateway's island, so that
everything it starts is there as well; nodes are started through `enter`. Needs root; the fixture
skips with the kernel's reason where that is not given.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import secrets
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKETS_MAX = 1000
_libc = ctypes.CDLL(None, use_errno=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def standing_on(namespace_path: str) -> Iterator[None]:
    """Move this thread, and what it starts meanwhile, into a network namespace."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _set_namespace(namespace_path)
        try:
            yield
        finally:
            if _libc.setns(home, CLONE_NEWNET):
                os._exit(70)  # nothing after this would run where it should
    finally:
        os.close(home)


def _set_namespace(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(descriptor)


class Islands:
    """A gateway's island and others around it, each joined to it and not to each other."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(3)
        self._count = 0
        self._made: list[str] = []
        self._cables: dict[str, tuple[str, str, str]] = {}
        self.gateway = self._make("gateway")
        self.links: list[WeakLink] = []

    def _make(self, name: str) -> str:
        full = f"din-{self._mark}-{name}"
        ip("netns", "add", full)
        self._made.append(full)
        ip("-n", full, "link", "set", "lo", "up")
        return full

    def path(self, namespace: str) -> str:
        return f"/run/netns/{namespace}"

    def enter(self, namespace: str) -> list[str]:
        """The words before a command that shall run there."""
        return ["nsenter", f"--net={self.path(namespace)}"]

    def _addresses(self) -> tuple[str, str]:
        self._count += 1
        return f"10.71.{self._count}.1", f"10.71.{self._count}.2"

    def add(
        self, name: str, *, is_forwarded_into_nothing: bool = False, is_routed: bool = False
    ) -> tuple[str, str]:
        """An island with a cable to the gateway's: its namespace and its address. What it sends
        elsewhere has no route, or goes to the gateway's kernel, which drops it or passes it on."""
        island = self._make(name)
        near, far = self._addresses()
        cable = f"d{self._mark}{self._count}"
        ip("-n", self.gateway, "link", "add", f"{cable}g", "type", "veth",
           "peer", "name", f"{cable}n", "netns", island)  # fmt: skip
        ip("-n", self.gateway, "addr", "add", f"{near}/24", "dev", f"{cable}g")
        ip("-n", island, "addr", "add", f"{far}/24", "dev", f"{cable}n")
        ip("-n", self.gateway, "link", "set", f"{cable}g", "up")
        ip("-n", island, "link", "set", f"{cable}n", "up")
        if is_forwarded_into_nothing or is_routed:
            ip("-n", island, "route", "add", "default", "via", near)
        if is_routed:
            with standing_on(self.path(self.gateway)):
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self._cables[name] = (island, f"{cable}n", far)
        return island, far

    def renumber(self, name: str) -> str:
        """Take an island's address away and give it another one, as a new lease does."""
        island, device, old = self._cables[name]
        network = old.rpartition(".")[0]
        ip("-n", island, "addr", "del", f"{old}/24", "dev", device)
        ip("-n", island, "addr", "add", f"{network}.77/24", "dev", device)
        ip("-n", island, "route", "add", "default", "via", f"{network}.1")
        return f"{network}.77"

    def add_weak(self, name: str, **quality: float) -> tuple[str, str, WeakLink]:
        """An island behind a slow, lossy link that can be cut."""
        island = self._make(name)
        near, far = self._addresses()
        cable = f"t{self._mark}{self._count}"
        ends = []
        for namespace, suffix, address in ((self.gateway, "g", near), (island, "n", far)):
            with standing_on(self.path(namespace)):
                ends.append(_open_tun(f"{cable}{suffix}"))
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", f"{cable}{suffix}")
            ip("-n", namespace, "link", "set", f"{cable}{suffix}", "up")
        link = WeakLink(ends[0], ends[1], **quality)
        self.links.append(link)
        return island, far, link

    def close(self) -> None:
        for link in self.links:
            link.close()
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _open_tun(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


class WeakLink:
    """Carries packets between two TUN devices: late, not all of them, and none while it is cut."""

    def __init__(
        self,
        one: int,
        other: int,
        *,
        delay_ms: float = 0,
        loss: float = 0,
        bits_per_s: float = 1e9,
    ) -> None:
        self._ends = (one, other)
        self._delay_s, self._loss, self._bits_per_s = delay_ms / 1000, loss, bits_per_s
        self._random = Random(71)
        self._wake_read, self._wake_write = os.pipe()
        self.is_cut = False
        self.carried = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        due: list[tuple[float, int, int, bytes]] = []
        free_at = [0.0, 0.0]
        count = 0
        while True:
            wait_s = max(due[0][0] - time.monotonic(), 0) if due else None
            ready, _, _ = select.select([*self._ends, self._wake_read], [], [], wait_s)
            if self._wake_read in ready:
                return
            for side, end in enumerate(self._ends):
                if end not in ready:
                    continue
                packet = os.read(end, 65536)
                is_lost = self._random.random() < self._loss or len(due) >= PACKETS_MAX
                if self.is_cut or is_lost:
                    continue
                now = time.monotonic()
                free_at[side] = max(now, free_at[side]) + len(packet) * 8 / self._bits_per_s
                count += 1
                heapq.heappush(due, (free_at[side] + self._delay_s, count, 1 - side, packet))
            while due and due[0][0] <= time.monotonic():
                _, _, side, packet = heapq.heappop(due)
                if self.is_cut:
                    continue
                try:
                    os.write(self._ends[side], packet)
                    self.carried += 1
                except OSError:
                    continue  # the device is full or down: one more lost packet

    def close(self) -> None:
        os.write(self._wake_write, b"x")
        self._thread.join()
        for descriptor in (*self._ends, self._wake_read, self._wake_write):
            os.close(descriptor)


@contextmanager
def islands() -> Iterator[Islands]:
    """Islands, with this thread on the gateway's; skips where the kernel refuses."""
    try:
        made = Islands()
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"no network namespaces here: {getattr(fault, 'stderr', '') or fault}")
    try:
        with standing_on(made.path(made.gateway)):
            yield made
    finally:
        made.close()
