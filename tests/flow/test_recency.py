"""What stays and what goes when there is a limit in bytes."""

from din.flow.recency import Recency


def test_what_was_not_asked_for_longest_goes_first():
    kept: Recency[str] = Recency(10)
    assert kept.put("a", "A", 4) == {}
    assert kept.put("b", "B", 4) == {}
    assert kept.get("a") == "A"
    assert kept.put("c", "C", 4) == {"b": "B"}
    assert list(kept.values()) == ["A", "C"]
    assert (kept.nbytes, len(kept)) == (8, 2)


def test_a_full_limit_is_no_overflow_and_one_byte_more_is():
    kept: Recency[str] = Recency(10)
    assert kept.put("a", "A", 10) == {}
    assert kept.put("b", "B", 1) == {"a": "A"}
    assert "b" in kept


def test_what_is_larger_than_the_limit_by_itself_pushes_nothing_out():
    kept: Recency[str] = Recency(10)
    kept.put("a", "A", 10)
    assert kept.put("b", "B", 11) == {"b": "B"}
    assert "a" in kept
    assert "b" not in kept


def test_a_value_put_twice_counts_once():
    kept: Recency[str] = Recency(10)
    kept.put("a", "A", 6)
    assert kept.put("a", "A2", 7) == {}
    assert (kept.get("a"), kept.nbytes, len(kept)) == ("A2", 7, 1)
    assert kept.pop("a") == "A2"
    assert kept.pop("a") is None
    assert kept.nbytes == 0


def test_there_is_a_limit_of_entries_as_well():
    kept: Recency[int] = Recency(1000, entries_max=2)
    kept.put("a", 1, 0)
    kept.put("b", 2, 0)
    assert kept.put("c", 3, 0) == {"a": 1}
