"""The benchmark of durable steps runs, with ours alone; how fast, is no business of a test."""

from __future__ import annotations

import pytest

from benchmarks.measure import PAIRED
from benchmarks.servers import settings as servers
from benchmarks.servers.measures import TasksNotDone
from benchmarks.steps.running import rate_of
from benchmarks.steps.settings import Sizes
from benchmarks.steps.works import STEPS_SUITE
from benchmarks.suites import SUITES

TINY = Sizes(rounds=1, tasks=3, slow=3, singles=1, turns=2, parked=2, idle=0.1, calls=1, pause=0.0)


USUAL = ("ten-steps-sqlite", "one-step-sqlite", "wake-sqlite")  # the others start as many processes again


def test_every_measurement_of_ours_can_be_made(
    redis_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    monkeypatch.setattr(servers, "REDIS", redis_url)
    monkeypatch.setattr(servers, "POSTGRES", postgres_url)
    for work in STEPS_SUITE.works:
        if not thorough and work.name not in USUAL:
            continue
        assert work.judged is not None
        figures = work.judged.measure(TINY)
        assert {key.removesuffix(PAIRED) for key in figures} == {metric.key for metric in work.metrics}
        assert all(value >= 0 for value in figures.values())  # an idle worker may use no time


def test_every_bar_is_about_something_that_is_measured() -> None:
    assert SUITES[STEPS_SUITE.name] is STEPS_SUITE
    for bar in STEPS_SUITE.bars:
        (work,) = [work for work in STEPS_SUITE.works if work.name == bar.work]
        assert bar.metric in {metric.key for metric in work.metrics}
        assert {*bar.beside, *filter(None, [bar.judges])} <= {contestant.label for contestant in work.contestants}


def test_a_task_that_is_lost_or_runs_twice_has_no_rate() -> None:
    assert rate_of([(0, 1.0), (1, 1.5), (0, 2.0), (1, 3.0)], 2) == 1.0
    for wrong in ([(0, 1.0), (0, 2.0)], [(0, 1.0), (0, 1.5), (1, 2.0)], [(0, 1.0), (0, 1.5), (1, 2.0), (1, 3.0)] * 2):
        with pytest.raises(TasksNotDone):
            rate_of(wrong, 2)
