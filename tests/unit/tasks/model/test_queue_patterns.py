"""Patterns of queues: what they match, and that no pattern takes long."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from bullpen.tasks.model.queue_patterns import matches_queue


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", min_size=1, max_size=8))
def test_a_star_stands_for_any_characters(pattern: str, queue: str) -> None:
    assert matches_queue(pattern, queue) == fnmatchcase(queue, pattern)


def test_parts_of_a_pattern_do_not_overlap() -> None:
    assert not matches_queue("ab*ba", "aba")
    assert matches_queue("ab*ba", "abba")
    assert not matches_queue("a*b*b", "ab")


def test_a_pattern_with_many_stars_is_decided_without_backtracking() -> None:
    """As a regular expression it would take longer than this test may."""
    assert not matches_queue("a*" * 49 + "b", "a" * 100)
    assert matches_queue("a*" * 49 + "b", "a" * 99 + "b")
