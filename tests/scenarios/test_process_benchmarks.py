"""The benchmark of process pools runs, with ours alone; how fast, is no business of a test."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest

from benchmarks.model import OURS, Work
from benchmarks.processes.settings import Sizes
from benchmarks.processes.works import PROCESSES
from benchmarks.suites import SUITES

numpy = import_module("numpy") if find_spec("numpy") else None  # starts threads of its own, which no test leaks
TINY = Sizes(rounds=1, tasks=50, items=500, calls=20, large=2, huge=1, warm_up=10)


@pytest.mark.parametrize("work", PROCESSES.works, ids=lambda work: work.name)
def test_every_measurement_of_ours_can_be_made(work: Work) -> None:
    if work.name == "array" and numpy is None:
        pytest.skip("numpy is not installed")
    assert work.judged is not None
    figures = work.judged.measure(TINY)
    assert set(figures) == {metric.key for metric in work.metrics}
    assert all(value > 0 for value in figures.values())


def test_every_bar_is_about_something_that_is_measured() -> None:
    for bar in PROCESSES.bars:
        (work,) = [work for work in PROCESSES.works if work.name == bar.work]
        assert bar.metric in {metric.key for metric in work.metrics}


def test_everybody_takes_part_under_a_name_of_their_own() -> None:
    assert SUITES["processes"] is PROCESSES
    for work in PROCESSES.works:
        labels = [contestant.label for contestant in work.contestants]
        assert len(set(labels)) == len(labels)
        assert labels[0].startswith("ProcessPoolExecutor")
        assert labels[-1] == OURS
