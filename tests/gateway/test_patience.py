"""Many that wait, one timer."""

from __future__ import annotations

import asyncio

from gateway_fakes import in_virtual_time

from din.gateway.requests.patience import Patience


class Waits:
    """Notes when it is given up."""

    def __init__(self, patience: Patience, after_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.began_s = self.loop.time()
        self.given_up_after_s: list[float] = []
        patience.begin(self, self.began_s + after_s)

    def give_up(self) -> None:
        self.given_up_after_s.append(round(self.loop.time() - self.began_s, 3))


def test_each_is_given_up_at_its_own_time_and_once():
    async def story() -> None:
        patience = Patience(asyncio.get_running_loop())
        all_of_them = [Waits(patience, after_s) for after_s in (3.0, 1.0, 2.0, 1.0)]
        assert len(patience) == 4
        await asyncio.sleep(10.0)
        assert [each.given_up_after_s for each in all_of_them] == [[3.0], [1.0], [2.0], [1.0]]
        assert len(patience) == 0

    in_virtual_time(story)


def test_what_ends_in_time_is_left_alone_and_later_ones_are_still_timed():
    async def story() -> None:
        patience = Patience(asyncio.get_running_loop())
        first, late = Waits(patience, 2.0), Waits(patience, 6.0)
        await asyncio.sleep(1.0)
        patience.end(first)
        patience.end(first)
        await asyncio.sleep(10.0)
        assert (first.given_up_after_s, late.given_up_after_s) == ([], [6.0])

    in_virtual_time(story)


def test_a_time_that_is_over_already_ends_at_once():
    async def story() -> None:
        patience = Patience(asyncio.get_running_loop())
        waits = Waits(patience, -1.0)
        await asyncio.sleep(0.001)
        assert waits.given_up_after_s == [0.0]

    in_virtual_time(story)


def test_giving_one_up_may_end_another():
    async def story() -> None:
        patience = Patience(asyncio.get_running_loop())

        class Ends(Waits):
            def give_up(self) -> None:
                super().give_up()
                patience.end(other)

        ends = Ends(patience, 1.0)
        other = Waits(patience, 1.0)
        await asyncio.sleep(5.0)
        assert (ends.given_up_after_s, other.given_up_after_s) == ([1.0], [])

    in_virtual_time(story)
