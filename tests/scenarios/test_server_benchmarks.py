"""The benchmark of the task queue on servers runs, with ours alone; how fast, is no business of a test."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import chart, measure, report
from benchmarks.__main__ import main
from benchmarks.measure import Interpreter, Results, Spread
from benchmarks.model import Suite, Work
from benchmarks.servers import measures, settings
from benchmarks.servers.works import ON_POSTGRES, ON_REDIS
from benchmarks.suites import SUITES

TINY = settings.Sizes(
    rounds=1,
    singles=2,
    bulk=10,
    drained=20,
    slow=10,
    calls=3,
    pause=0.0,
    few=20,
    many=40,
    claims=2,
    storm=50,
    storm_seconds=0.1,
    held=3,
    held_seconds=0.1,
    pinned=60,
)
USUAL = {"redis": ("drain",), "postgres": ("backlog", "pinned")}  # the others start as many processes again
EACH_SUITE = pytest.mark.parametrize("suite", [ON_REDIS, ON_POSTGRES], ids=lambda suite: suite.name)


@pytest.fixture
def on_the_servers_of_the_tests(monkeypatch: pytest.MonkeyPatch, redis_url: str, postgres_url: str) -> None:
    monkeypatch.setattr(settings, "REDIS", redis_url)
    monkeypatch.setattr(settings, "POSTGRES", postgres_url)


@EACH_SUITE
@pytest.mark.usefixtures("on_the_servers_of_the_tests")
def test_every_measurement_of_ours_can_be_made(suite: Suite, thorough: bool) -> None:
    for work in suite.works:
        if not thorough and work.name not in USUAL[suite.name]:
            continue
        assert work.judged is not None
        figures = work.judged.measure(TINY)
        assert set(figures) == {metric.key for metric in work.metrics}
        assert all(value > 0 for value in figures.values())


@EACH_SUITE
def test_every_bar_is_about_something_that_is_measured(suite: Suite) -> None:
    assert SUITES[suite.name] is suite
    for bar in suite.bars:
        (work,) = [work for work in suite.works if work.name == bar.work]
        assert bar.metric in {metric.key for metric in work.metrics}
        assert {*bar.beside, *filter(None, [bar.judges])} <= {contestant.label for contestant in work.contestants}
        assert work.judged is not None


def test_tasks_that_ran_twice_or_not_at_all_have_no_rate() -> None:
    assert measures.rate_of([(0, 1.0), (1, 1.5), (2, 2.0)], 3) == 2.0
    for wrong in ([(0, 1.0), (1, 2.0)], [(0, 1.0), (1, 1.5), (1, 2.0)]):
        with pytest.raises(measures.TasksNotDone):
            measures.rate_of(wrong, 3)


def figures(name: str = "drain", **rates: float) -> tuple[report.Run, Work]:
    """A run of a work on PostgreSQL with these figures."""
    (work,) = [work for work in ON_POSTGRES.works if work.name == name]
    interpreter = Interpreter("python", "3", "Python", {}, {})
    results = Results()
    for label, rate in rates.items():
        results.rounds["python", work.name, label.replace("__", ", ").replace("_", " ")] = [{"rate": rate}]
    suite = replace(ON_POSTGRES, works=(work,), settings=dict)
    return report.Run([interpreter], suite, TINY, results, datetime.now(UTC)), work


def test_ratios_are_to_the_best_peer_of_the_run_and_the_raw_statements_are_none() -> None:
    run, work = figures(pgqueuer=100.0, chancy=50.0, raw_statements=1000.0, bullpen=250.0)
    rows = {row.contestant.label: row for row in run.rows(run.interpreters[0], work)}
    assert rows["pgqueuer"].is_reference
    assert rows["bullpen"].ratio == Spread(2.5, 2.5, 2.5)
    assert [(one.rival, one.met) for one in rows["bullpen"].verdicts] == [("pgqueuer", True), ("chancy", True)]
    assert "bullpen beside the raw statements: 0.25 ×" in report.text(run)
    assert "✓ ≥ 4 × chancy (5.00)" in report.markdown(run)
    assert chart.draw(run, run.interpreters[0]).startswith("<svg")


def test_a_bar_beside_somebody_who_was_not_measured_is_not_met() -> None:
    run, work = figures(pgqueuer=100.0, bullpen=250.0)
    (*_, ours) = run.rows(run.interpreters[0], work)
    assert [verdict.met for verdict in ours.verdicts] == [True, False]
    assert not run.bars_met()


def test_a_bar_may_judge_another_contestant_than_the_last() -> None:
    """Whoever blocks is measured by the best of all, and whoever does not by its like."""
    run, work = figures(
        "enqueue", **{"pgqueuer": 100.0, "dramatiq-pg": 200.0, "bullpen__sync": 250.0, "bullpen": 150.0}
    )
    rows = {row.contestant.label: row for row in run.rows(run.interpreters[0], work)}
    assert [(one.rival, one.judged, one.met) for one in rows["bullpen, sync"].verdicts] == [
        ("", Spread(1.25, 1.25, 1.25), True)
    ]
    assert [(one.rival, one.judged, one.met) for one in rows["bullpen"].verdicts] == [
        ("pgqueuer", Spread(1.5, 1.5, 1.5), True)
    ]


def test_rounds_that_were_kept_are_there_again(tmp_path: Path) -> None:
    run, _ = figures(pgqueuer=100.0, bullpen=250.0)
    run.results.crashes["python", "drain", "bullpen"] = "it broke"
    run.results.loads.append(1.5)
    run.results.keep(tmp_path / "rounds.json")
    assert Results.kept(tmp_path / "rounds.json") == run.results
    assert Results.kept(tmp_path / "none.json") == Results()


def test_a_peer_may_have_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "huey" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    without = {"python": "3.11.7", "implementation": "CPython", "versions": {}, "missing": {"huey:RedisHuey": "no"}}
    answers = {"python": without, str(own): without | {"versions": {"huey": "3"}, "missing": {}}}
    monkeypatch.setattr(measure, "_run", lambda command, arguments: answers[command])
    huey = ON_REDIS.find("drain", "huey")
    interpreter = measure.probe("python", ON_REDIS, tmp_path)
    assert interpreter.command_for(huey) == str(own)
    assert interpreter.command_for(ON_REDIS.find("drain", "bullpen")) == "python"
    assert (interpreter.versions, interpreter.missing) == ({"huey": "3"}, {})
    answers[str(own)] |= {"python": "3.13.1"}
    assert not measure.able(measure.probe("python", ON_REDIS, tmp_path), huey)


def test_a_size_that_no_suite_has_is_rejected_with_those_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["redis", "--size", "tasks=7"])
    assert "must be one of rounds, singles, bulk, drained" in capsys.readouterr().err
