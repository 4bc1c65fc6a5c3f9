"""Ids are UUIDs of version 7, in the order in which they were made."""

from __future__ import annotations

import threading
import uuid

from hypothesis import given
from hypothesis import strategies as st

from bullpen.tasks.client import ids
from bullpen.tasks.client.ids import new_ids
from bullpen.tasks.model.ids import as_uuid7, next_ordinal

MS = st.integers(0, 2**47)
LUCK = st.integers(0, 2**74 - 1)


@given(MS, LUCK)
def test_an_id_is_a_uuid_that_holds_its_time(unix_ms: int, luck: int) -> None:
    text = as_uuid7(next_ordinal(-1, unix_ms, luck))
    made = uuid.UUID(text)
    assert str(made) == text
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == unix_ms


@given(st.lists(st.tuples(MS, LUCK), min_size=2))
def test_ids_sort_as_they_were_made_also_when_the_clock_goes_back(draws: list[tuple[int, int]]) -> None:
    ordinal, made = -1, []
    for unix_ms, luck in draws:
        ordinal = next_ordinal(ordinal, unix_ms, luck)
        made.append(as_uuid7(ordinal))
    assert sorted(set(made)) == made


@given(st.integers(0, 2**48 - 1), st.lists(st.integers(1, 30), min_size=1))
def test_ids_go_on_where_their_last_part_is_used_up(node: int, counts: list[int]) -> None:
    ids.new_ids(1)
    ids._node = max(ids._node, node | (2**48 - 32))
    made = [one for count in counts for one in new_ids(count)]
    assert sorted(set(made)) == made
    assert len(made) == sum(counts)
    assert all(str(uuid.UUID(one)) == one and uuid.UUID(one).version == 7 for one in made)


def test_all_random_bits_are_used() -> None:
    assert as_uuid7(next_ordinal(-1, 0, 2**74 - 1)) == "00000000-0000-7fff-bfff-ffffffffffff"
    assert as_uuid7(next_ordinal(-1, 0, 0)) == "00000000-0000-7000-8000-000000000000"


def test_threads_never_make_the_same_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]

    def make(mine: list[str]) -> None:
        for _ in range(500):
            mine += new_ids(4)

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sorted(mine) == mine for mine in made)
    assert len({one for mine in made for one in mine}) == 8000
