"""How fast bytes come, by the last measurements."""

from din.flow.pace import SAMPLES_MAX, Pace
from din.flow.recent import AGE_MS_MAX

MIB = 1024 * 1024


def test_the_middle_of_the_samples_counts_so_one_stall_or_burst_decides_nothing():
    pace = Pace()
    assert pace.mib_per_second(0) is None
    for rate in (10, 11, 9, 0.1, 4000):
        pace.note(MIB, 1000 / rate, 0)
    assert round(pace.mib_per_second(0) or 0, 6) == 10


def test_of_many_samples_the_last_count_and_old_ones_are_forgotten():
    pace = Pace()
    for _ in range(50):
        pace.note(MIB, 1000, 0)
    for _ in range(SAMPLES_MAX):
        pace.note(MIB, 100, 5)
    assert round(pace.mib_per_second(AGE_MS_MAX) or 0, 6) == 10
    assert pace.mib_per_second(AGE_MS_MAX + 6) is None


def test_what_took_no_time_says_nothing():
    pace = Pace()
    pace.note(MIB, 0, 0)
    pace.note(0, 10, 0)
    pace.note(-5, 10, 0)
    assert pace.mib_per_second(0) is None
