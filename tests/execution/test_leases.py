"""Leases over virtual time."""

from __future__ import annotations

from din.domain.deployment import Epoch
from din.execution.leases import Leases

FIRST, SECOND = (Epoch(1, 1), 0), (Epoch(2, 1), 0)


def test_a_lease_that_is_not_renewed_passes() -> None:
    leases = Leases()
    leases.grant(FIRST, 1_000, 500)
    assert leases.next_wakeup_ms() == 1_500
    assert leases.over(1_499) == ()
    assert not leases.is_over(FIRST, 1_499)
    assert leases.over(1_500) == (FIRST,)
    assert leases.is_over(FIRST, 1_500)


def test_renewing_prolongs_the_slices_of_one_deployment_from_now() -> None:
    leases = Leases()
    leases.grant(FIRST, 0, 500)
    leases.grant((FIRST[0], 1), 0, 500)
    leases.grant(SECOND, 0, 500)
    leases.renew(FIRST[0], 400, 500)
    assert leases.over(500) == (SECOND,)
    assert set(leases.over(900)) == {FIRST, (FIRST[0], 1), SECOND}


def test_a_lease_that_is_over_is_not_renewed_but_may_be_granted_anew() -> None:
    leases = Leases()
    leases.grant(FIRST, 0, 500)
    leases.renew(FIRST[0], 500, 500)
    assert leases.is_over(FIRST, 500)
    leases.grant(FIRST, 600, 500)
    assert not leases.is_over(FIRST, 600)


def test_a_slice_without_a_lease_is_held_for_ever() -> None:
    leases = Leases()
    leases.grant(FIRST, 0, 0)
    assert leases.next_wakeup_ms() is None
    assert not leases.is_over(FIRST, 10**12)


def test_an_ended_lease_is_forgotten() -> None:
    leases = Leases()
    leases.grant(FIRST, 0, 500)
    leases.end(FIRST)
    leases.end(FIRST)
    assert leases.over(10**6) == ()
