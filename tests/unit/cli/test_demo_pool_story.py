from __future__ import annotations

from collections.abc import Iterator

import pytest

from bullpen.cli.demo_pool_story import Jobs, Phase, Stream, Traffic, make_plan
from bullpen.pool.pool import Pool


def test_a_stream_keeps_the_asked_share_of_workers_busy() -> None:
    stream = Stream(Jobs().send_email, seconds=0.5, load=lambda x: 2 * x)
    assert stream.rate(0.25, workers=8) == 8.0  # half of eight workers, two calls a second each
    assert stream.rate(0.0, workers=8) == 0.0


@pytest.mark.parametrize(("seconds", "promised"), [(2.0, 0.05), (10.0, 0.25), (60.0, 0.25)])
def test_a_short_demo_is_faster_and_a_long_one_is_not_slower(seconds: float, promised: float) -> None:
    plan = make_plan(Jobs(), workers=4, seconds=seconds)
    assert plan.promised == promised
    assert plan.phase_seconds * len(plan.phases) == seconds


@pytest.mark.parametrize("workers", [1, 2, 8, 64])
def test_the_resize_adds_workers(workers: int) -> None:
    (resized,) = [phase for phase in make_plan(Jobs(), workers, 10.0).phases if phase.resize_to]
    assert resized.resize_to is not None
    assert resized.resize_to > workers
    assert resized.call == f"pool.resize({resized.resize_to})"


@pytest.fixture
def jobs() -> Jobs:
    jobs = Jobs()
    jobs.stop()  # no job waits
    return jobs


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(2, log_errors=False) as pool:
        yield pool


def test_traffic_sends_one_call_at_once_and_then_at_the_rate(pool: Pool, jobs: Jobs) -> None:
    plan = make_plan(jobs, workers=2, seconds=10.0)
    traffic = Traffic(pool, plan, now=lambda: 0.0)
    phase = Phase("x", "", "", (Stream(jobs.send_email, 0.1, lambda _: 1.0),))  # 20 calls a second
    traffic.flow(phase, 0.0, 0.0)
    assert pool.stats().submitted == 1
    traffic.flow(phase, 0.5, 0.125)
    assert pool.stats().submitted == 3
    traffic.flow(phase, 1.0, 0.025)
    assert pool.stats().submitted == 4


def test_only_callers_with_a_deadline_are_timed(pool: Pool, jobs: Jobs) -> None:
    times = iter([10.0, 10.5])
    traffic = Traffic(pool, make_plan(jobs, workers=2, seconds=10.0), now=lambda: next(times))
    traffic.send(Stream(jobs.slow_report, 0.1, lambda _: 1.0, {"timeout": 60.0}))
    pool.close()
    assert traffic.longest_wait == 0.5


def test_a_caller_that_is_turned_away_is_not_timed(jobs: Jobs) -> None:
    with Pool(1, max_queue=0) as pool:
        pool.pause()
        traffic = Traffic(pool, make_plan(jobs, workers=1, seconds=10.0), now=lambda: 0.0)
        traffic.send(Stream(jobs.slow_report, 0.1, lambda _: 1.0, {"timeout": 60.0}))
        assert pool.stats().saturated == 1
    assert traffic.longest_wait is None


def test_a_broken_job_raises_and_the_others_return(jobs: Jobs) -> None:
    with pytest.raises(ConnectionError):
        jobs.sync_broken(60.0)
    for job in (jobs.render_page, jobs.resize_image, jobs.send_email, jobs.slow_report, jobs.sync_stock):
        job(60.0)
