"""Workers share the upkeep: one of a group has the turn, however many there are."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bullpen.tasks.storage.sqlite.upkeep_turns import take_turn


def set_time(path: Path, ago: float) -> None:
    then = time.time() - ago
    os.utime(path, (then, then))


def test_one_of_many_has_the_turn(tmp_path: Path) -> None:
    assert [take_turn(tmp_path, "boot/1", 60) for _ in range(50)] == [True] + [False] * 49


def test_a_turn_ends(tmp_path: Path) -> None:
    assert take_turn(tmp_path, "boot/1", 60)
    set_time(tmp_path / "upkeep-boot-1", ago=61)
    assert [take_turn(tmp_path, "boot/1", 60) for _ in range(2)] == [True, False]


def test_a_clock_that_is_set_back_gives_the_turn_to_the_next(tmp_path: Path) -> None:
    assert take_turn(tmp_path, "boot/1", 60)
    set_time(tmp_path / "upkeep-boot-1", ago=-1000)
    assert [take_turn(tmp_path, "boot/1", 60) for _ in range(2)] == [True, False]


def test_workers_that_cannot_see_each_other_have_turns_of_their_own(tmp_path: Path) -> None:
    assert take_turn(tmp_path, "boot/1", 60)
    assert take_turn(tmp_path, "boot/2", 60)


def test_groups_that_are_gone_leave_no_file(tmp_path: Path) -> None:
    assert take_turn(tmp_path, "old", 60)
    set_time(tmp_path / "upkeep-old", ago=100_000)
    assert take_turn(tmp_path, "new", 60)
    assert [path.name for path in tmp_path.iterdir()] == ["upkeep-new"]


def test_without_a_folder_everybody_has_the_turn(tmp_path: Path) -> None:
    assert [take_turn(tmp_path / "missing", "boot/1", 60) for _ in range(2)] == [True, True]
