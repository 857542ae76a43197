"""Clients that ask until they are told to stop, and remember what they were told."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from din.errors import DinError
from tests.road.processes import Network, wait_for


class Asking:
    """`clients` threads, each with a client of its own."""

    def __init__(
        self,
        network: Network,
        model: str,
        inputs: dict[str, np.ndarray],
        is_right: Callable[[dict[str, Any]], bool],
        *,
        clients: int,
        timeout_ms: int,
    ) -> None:
        self._network = network
        self._model = model
        self._inputs = inputs
        self._is_right = is_right
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.good = 0
        self.bad: list[str] = []
        self.threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        with self._network.client(timeout_ms=self._timeout_ms) as client:
            while not self._stop.is_set():
                try:
                    answer = client.infer(self._model, self._inputs)
                    text = "" if self._is_right(answer.outputs) else "wrong numbers"
                except DinError as error:
                    text = error.story()
                with self._lock:
                    self.good += not text
                    if text:
                        self.bad.append(text)

    def wait_more(self, count: int, seconds: float = 30) -> None:
        """Until so many more requests were answered rightly."""
        goal = self.good + count
        wait_for(
            f"{count} more answers",
            lambda: self.good >= goal or self.bad,
            seconds,
        )

    def stop(self) -> None:
        self._stop.set()
        for thread in self.threads:
            thread.join(self._timeout_ms / 1000 + 10)
        assert not any(thread.is_alive() for thread in self.threads), "a request never ended"


@contextmanager
def asking(
    network: Network,
    model: str,
    inputs: dict[str, np.ndarray],
    is_right: Callable[[dict[str, Any]], bool],
    *,
    clients: int = 4,
    timeout_ms: int = 20_000,
    may_fail: str = "",
) -> Iterator[Asking]:
    """Ask all the while; at the end every request was answered, and rightly, but for those that
    failed in words that this pattern finds."""
    load = Asking(network, model, inputs, is_right, clients=clients, timeout_ms=timeout_ms)
    for thread in load.threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop()
    bad = [each for each in load.bad if not (may_fail and re.search(may_fail, each))]
    assert bad == [], bad[:3]
    assert load.good > 0
