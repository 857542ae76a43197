"""Accepting when descriptors run out."""

import asyncio
import errno
import socket

import pytest

from din.api import accepting
from din.api.accepting import Acceptor
from din.api.serve import bind


class Full:
    """A listening socket that finds no descriptor for the first connections."""

    def __init__(self, times: int) -> None:
        self.real = bind("127.0.0.1", 0)
        self.times = times

    def fileno(self) -> int:
        return self.real.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self.real.accept()


def test_without_descriptors_it_tries_once_and_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 0.01)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[object] = []
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        full = Full(times=3)
        taken: asyncio.Future[str] = loop.create_future()

        def take(accepted: socket.socket, address: str) -> None:
            assert not accepted.getblocking()
            accepted.close()
            taken.set_result(address)

        acceptor = Acceptor(full, take)
        acceptor.start()
        with socket.create_connection(full.real.getsockname()):
            acceptor._on_acceptable()
            assert full.times == 2, "one turn is one try"
            assert await taken == "127.0.0.1"
        assert full.times == 0
        assert not complaints
        acceptor.close()
        acceptor.close()
        full.real.close()

    asyncio.run(asyncio.wait_for(story(), 20))
