"""Own addresses: only what other machines can dial, and no surprise from a vanishing interface."""

import socket
import subprocess
import sys

import pytest

from din.system.network import (
    AddressWatch,
    Interface,
    RawInterface,
    bound_addresses,
    open_address_news,
    reachable,
    read_news,
    system_interfaces,
)

HOST = {
    "lo": RawInterface(True, ("127.0.0.1", "::1")),
    "eth0": RawInterface(True, ("192.168.1.20", "fe80::1", "2001:db8::20")),
    "wlan0": RawInterface(False, ("192.168.7.20",)),
    "docker0": RawInterface(True, ("172.17.0.1",)),
    "br-3f2a": RawInterface(True, ("172.18.0.1",)),
    "veth12": RawInterface(True, ("169.254.3.4",)),
    "tailscale0": RawInterface(True, ("100.64.0.9",)),
    "zt0": RawInterface(True, ("10.147.17.1",)),
}


def addresses(**more) -> list[str]:
    return [each.address for each in reachable(HOST, **more)]


def test_bridges_tunnels_and_dead_interfaces_are_left_out() -> None:
    """T01."""
    assert addresses() == ["192.168.1.20", "2001:db8::20"]


def test_the_operator_may_allow_and_deny_interfaces() -> None:
    """T01."""
    assert addresses(allow=("tailscale*",)) == ["100.64.0.9"]
    assert addresses(allow=("lo",)) == ["127.0.0.1", "::1"]
    assert addresses(deny=("eth*",)) == []
    assert addresses(allow=("*",), deny=("eth*", "docker*", "br-*", "lo")) == [
        "100.64.0.9",
        "10.147.17.1",
    ]


def test_link_local_addresses_are_never_announced() -> None:
    assert addresses(allow=("veth*",)) == []


def test_an_interface_that_vanishes_is_noticed_and_comes_back() -> None:
    """T02, T06."""
    now = dict(HOST)
    watch = AddressWatch(source=lambda: now)
    assert not watch.look()
    now.pop("eth0")
    assert watch.look()
    assert watch.current == ()
    now["eth0"] = RawInterface(True, ("192.168.1.77",))
    assert watch.look()
    assert watch.current == (Interface("eth0", "192.168.1.77"),)


def test_every_address_of_the_machine_is_known_also_those_that_nobody_can_dial() -> None:
    watch = AddressWatch(source=lambda: HOST)
    assert {"127.0.0.1", "172.17.0.1", "192.168.7.20"} <= watch.here
    assert [each.address for each in watch.current] == ["192.168.1.20", "2001:db8::20"]


TELLS = """
import select, subprocess
from din.system.network import open_address_news, read_news
news = open_address_news()
assert not select.select([news], [], [], 0)[0], "nothing has happened yet"
for words in (["link", "set", "lo", "up"], ["addr", "add", "10.9.9.9/24", "dev", "lo"]):
    subprocess.run(["ip", *words], check=True)
    assert select.select([news], [], [], 30)[0], words
    read_news(news)
    assert not select.select([news], [], [], 0)[0], "all was read"
print("told")
"""


@pytest.mark.system
def test_the_kernel_tells_of_interfaces_and_addresses() -> None:
    """T06, in a network of its own."""
    entered = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True)
    if entered.returncode:
        pytest.skip(f"no network namespaces here: {entered.stderr.decode().strip()}")
    ran = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", TELLS],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "told\n", ran.stderr


def test_a_refused_subscription_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []

    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            made.append(self)
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("din.system.network.socket.socket", Refusing)
    with pytest.raises(PermissionError):
        open_address_news()
    assert [each.fileno() for each in made] == [-1]


class Overrun:
    """A socket of which the kernel says once that it lost messages."""

    def __init__(self, *faults: OSError) -> None:
        self.faults = list(faults)

    def recv(self, _: int) -> bytes:
        raise self.faults.pop(0)


def test_lost_news_are_news_and_other_faults_are_told() -> None:
    sock = Overrun(OSError(105, "No buffer space available"), BlockingIOError())
    read_news(sock)
    assert sock.faults == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_news(Overrun(OSError(9, "Bad file descriptor")))


def test_a_failed_look_keeps_the_last_addresses_and_is_counted() -> None:
    """T02: ENODEV while the list is read."""
    answers = [HOST]

    def source():
        if answers:
            return answers.pop()
        raise OSError(19, "No such device")

    watch = AddressWatch(source=source)
    before = watch.current
    assert not watch.look()
    assert (watch.current, watch.failures) == (before, 1)


def test_a_server_is_announced_where_it_is_bound() -> None:
    found = reachable(HOST)
    assert bound_addresses("127.0.0.1", found) == ("127.0.0.1",)
    assert bound_addresses("0.0.0.0", found) == ("192.168.1.20", "127.0.0.1")
    assert bound_addresses("localhost", found) == ("127.0.0.1",)


def test_this_machine_can_be_asked() -> None:
    assert "127.0.0.1" in system_interfaces()["lo"].addresses
