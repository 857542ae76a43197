"""What the log says of sensors that fail."""

from din.agent.sensor_news import TELL_EVERY_MS, SensorNews
from din.system.polling import SensorTrouble


def test_a_failing_sensor_is_told_at_once_and_then_seldom() -> None:
    """T20: bad values are counted, and somebody hears of it."""
    troubles = {"temperature": SensorTrouble(failures=1, hangs_ms=0)}
    told: list[dict[str, object]] = []
    news = SensorNews(lambda: troubles, lambda event, **facts: told.append({"is": event, **facts}))
    news.look(0)
    line = {"is": "sensor_failed", "sensor": "temperature", "failures": 1, "hangs_ms": 0,
            "unchanged_ms": 0}  # fmt: skip
    assert told == [line]
    troubles["temperature"] = SensorTrouble(failures=7, hangs_ms=0)
    news.look(3000)
    assert told == [line]
    troubles["temperature"] = SensorTrouble(failures=1300, hangs_ms=0)
    news.look(TELL_EVERY_MS)
    assert told[1:] == [{**line, "failures": 1300}]


def test_one_that_failed_once_long_ago_is_not_told_again_and_one_that_hangs_is() -> None:
    troubles = {"power": SensorTrouble(failures=1, hangs_ms=0)}
    told: list[object] = []
    news = SensorNews(lambda: troubles, lambda event, **facts: told.append(facts["hangs_ms"]))
    news.look(0)
    news.look(TELL_EVERY_MS)
    assert told == [0]
    troubles["power"] = SensorTrouble(failures=1, hangs_ms=9000)
    news.look(2 * TELL_EVERY_MS)
    assert told == [0, 9000]


def test_one_whose_value_never_moves_is_told() -> None:
    """T20: stuck at 85000."""
    troubles = {"temperature": SensorTrouble(failures=0, hangs_ms=0, unchanged_ms=3_600_000)}
    told: list[object] = []
    news = SensorNews(lambda: troubles, lambda event, **facts: told.append(facts["unchanged_ms"]))
    news.look(0)
    assert told == [3_600_000]
