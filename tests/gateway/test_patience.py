"""Many futures, one timer."""

from __future__ import annotations

import asyncio

from gateway_fakes import in_virtual_time, outcome_of

from din.gateway.patience import Patience


def test_each_future_is_given_up_at_its_own_time():
    async def story() -> None:
        loop = asyncio.get_running_loop()
        patience = Patience(loop)
        ended: list[tuple[float, int]] = []

        async def waits(number: int, until_s: float) -> None:
            found = await outcome_of(patience.wait(loop.create_future(), until_s))
            assert isinstance(found, TimeoutError)
            ended.append((round(loop.time() - began_s, 3), number))

        began_s = loop.time()
        delays_s = (3.0, 1.0, 2.0, 1.0)
        await asyncio.gather(*(waits(n, began_s + delay) for n, delay in enumerate(delays_s)))
        assert ended == [(1.0, 1), (1.0, 3), (2.0, 2), (3.0, 0)]
        assert len(patience) == 0

    in_virtual_time(story)


def test_what_comes_in_time_is_handed_on_and_later_ones_are_still_timed():
    async def story() -> None:
        loop = asyncio.get_running_loop()
        patience = Patience(loop)
        first: asyncio.Future[int] = loop.create_future()
        loop.call_later(1.0, first.set_result, 7)
        assert await patience.wait(first, loop.time() + 2.0) == 7
        late = patience.wait(loop.create_future(), loop.time() + 5.0)
        began_s = loop.time()
        assert isinstance(await outcome_of(late), TimeoutError)
        assert round(loop.time() - began_s, 3) == 5.0

    in_virtual_time(story)


def test_a_time_that_is_over_already_ends_at_once():
    async def story() -> None:
        loop = asyncio.get_running_loop()
        patience = Patience(loop)
        began_s = loop.time()
        found = await outcome_of(patience.wait(loop.create_future(), began_s - 1.0))
        assert isinstance(found, TimeoutError)
        assert loop.time() == began_s

    in_virtual_time(story)
