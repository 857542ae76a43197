"""Versions that nobody asks for give their memory back; the next request has them loaded again."""

from __future__ import annotations

from din.gateway.routes.serving import Serving


class Idling:
    """How long a version may wait for requests."""

    def __init__(self) -> None:
        self.unload_ms = 0.0
        """0 = for ever."""

    def is_due(self, serving: Serving, now_ms: float) -> bool:
        """Whether it has waited too long; to be asked again and again."""
        is_ready = serving.deployment.state == "ready"
        if not self.unload_ms or not is_ready or serving.is_kept or serving.is_used:
            serving.asked_ms = now_ms  # its time begins when it is ready and nothing runs
            return False
        return now_ms - serving.asked_ms >= self.unload_ms

    @property
    def reason(self) -> str:
        """For people."""
        return f"no request for {self.unload_ms / 1000:g} s: the next one has it loaded again"
