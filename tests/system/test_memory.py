"""Memory is measured, and comes back."""

from __future__ import annotations

from din.system.memory import give_memory_back, resident_bytes


def test_memory_in_use_is_seen_and_given_back() -> None:
    pieces = [bytes(100_000) for _ in range(400)]
    full = resident_bytes()
    pieces.clear()
    give_memory_back()
    assert 0 < resident_bytes() < full
