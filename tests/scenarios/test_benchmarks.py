"""The benchmark of the task queue runs, also without any of its peers; how fast, is no business of a test."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE

import pytest

from benchmarks import chart, guard, report
from benchmarks.__main__ import RESULTS, _parser
from benchmarks.guard import Guarded
from benchmarks.measure import PAIRED, Interpreter, Results, Spread, measure
from benchmarks.model import Contestant, Suite, Work
from benchmarks.suites import SUITES
from benchmarks.tasks import idle, soak
from benchmarks.tasks.peers import ASYNCIO, BULLPEN, PLAIN, SettingsDiffer, check_settings
from benchmarks.tasks.plain import Plain
from benchmarks.tasks.settings import Sizes, new_folder
from benchmarks.tasks.works import TASKS
from tests.scenarios.process_support import eventually, is_alive, parent_of

ROOT = Path(__file__).parents[2]

TINY = Sizes(
    rounds=1,
    singles=3,
    bulk=20,
    drained=20,
    timed=10,
    calls=3,
    pause=0.0,
    idle=0.01,
    few=20,
    many=40,
    claims=2,
    in_memory=200,
)
OWN = (PLAIN, ASYNCIO, BULLPEN)  # what is there without anything installed

RUNNABLE = [(work, one) for work in TASKS.works for one in work.contestants if one.peer in OWN]


@pytest.mark.parametrize(("work", "contestant"), RUNNABLE, ids=lambda it: getattr(it, "name", "") or it.label)
def test_every_measurement_of_ours_can_be_made(work: Work, contestant: Contestant) -> None:
    figures = contestant.measure(TINY)
    assert {key.removesuffix(PAIRED) for key in figures} == {metric.key for metric in work.metrics}
    assert all(value >= 0 for value in figures.values())


def test_every_bar_is_about_something_that_is_measured() -> None:
    for bar in TASKS.bars:
        (work,) = [work for work in TASKS.works if work.name == bar.work]
        assert bar.metric in {metric.key for metric in work.metrics}
        assert work.judged is not None


@pytest.mark.skipif(not guard.AVAILABLE, reason="Linux only")
def test_what_a_benchmark_has_started_ends_with_it(tmp_path: Path) -> None:
    other = f"import subprocess; subprocess.run(['sh', '-c', 'echo $$ > {tmp_path}/other; exec sleep 600'])"
    run = f"import sys; from benchmarks.guard import Guarded; Guarded([sys.executable, '-c', {other!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", run], cwd=ROOT) as benchmark:
        eventually(lambda: (tmp_path / "other").exists() and (tmp_path / "other").read_text())
        pids = [int((tmp_path / "other").read_text())]
        while pids[-1] != benchmark.pid:
            pids.append(parent_of(pids[-1]))
        assert len(pids) == 4
        benchmark.kill()
    eventually(lambda: not any(map(is_alive, pids)))


def test_a_guarded_program_is_used_like_any_other() -> None:
    echo = "import sys; print(sys.stdin.read()); sys.exit(3)"
    with Guarded([sys.executable, "-c", echo], stdin=PIPE, stdout=PIPE) as program:
        assert program.communicate(b"there and back")[0].strip() == b"there and back"
        program.end()
    assert program.returncode == 3
    with Guarded(["this program is not there"], stderr=PIPE) as missing:
        assert b"this program is not there" in missing.communicate()[1]
        missing.end()
    assert missing.returncode != 0


def test_a_run_leaves_out_the_peers_that_are_missing_and_is_reported_in_all_forms() -> None:
    suite = replace(TASKS, works=tuple(work for work in TASKS.works if work.name == "idle"))
    interpreter = Interpreter(sys.executable, "3", "Python", {}, missing={"huey:SqliteHuey": "not there"})
    results = measure([interpreter], suite, TINY, rng=random.Random(1), before=lambda _: None)
    assert results.crashes == {}
    assert {label for _, _, label in results.rounds} == {"bullpen"}
    run = report.Run([interpreter], suite, TINY, results, datetime.now(UTC))
    assert "huey is left out" in report.text(run)
    assert "| bullpen | " in report.markdown(run)
    assert report.markdown(run).startswith("# Figures: bullpen.TaskQueue beside")
    assert "`python -m benchmarks tasks --markdown` wrote this file, from one run.\n" in report.markdown(run)
    assert chart.draw(run, interpreter).startswith("<svg")
    assert report.as_json(run)["bars_met"] in (True, False)


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_tables_go_to_the_results_unless_a_file_is_named(suite: Suite) -> None:
    parse = _parser(suite).parse_args
    assert parse(["--markdown", "--json"]).markdown == RESULTS / f"{suite.name}.md"
    assert parse(["--markdown", "--json"]).json == RESULTS / f"{suite.name}.json"
    assert parse(["--markdown", "table.md"]).markdown == Path("table.md")
    assert parse([]).markdown is None
    assert (RESULTS / f"{suite.name}.md").read_text().startswith(f"# Figures: {suite.title}\n")


def test_a_ratio_that_a_round_has_taken_itself_counts() -> None:
    work = next(work for work in TASKS.works if work.name == "enqueue-coroutines")
    reference, *_, ours = work.contestants
    interpreter = Interpreter("python", "3", "Python", {}, {})
    results = Results()
    results.rounds[interpreter.command, work.name, reference.label] = [{"rate": 10.0}, {"rate": 10.0}]
    results.rounds[interpreter.command, work.name, ours.label] = [{"rate": 20.0, "rate" + PAIRED: 7.0}, None]
    assert results.ratio(interpreter, work, ours, work.metrics[0]) == Spread(7.0, 7.0, 7.0)


def test_a_connection_that_does_not_do_what_is_said_about_it_is_no_contestant() -> None:
    with new_folder() as folder, Plain(folder) as plain:
        check_settings(plain.db, "FULL")
        plain.db.execute("PRAGMA synchronous = OFF")
        with pytest.raises(SettingsDiffer, match="OFF"):
            check_settings(plain.db, "FULL")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of another process is read from /proc")
def test_the_cost_of_idle_workers_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert idle.main(["--workers", "1", "--seconds", "0.1"]) == 0
    assert "each of 1 workers" in capsys.readouterr().out


def test_the_soak_samples_the_worker_until_everything_is_done(tmp_path: Path) -> None:
    svg, samples = tmp_path / "soak.svg", tmp_path / "soak.json"
    assert soak.main(["--tasks", "50", "--svg", str(svg), "--json", str(samples)]) in (0, 1)
    done, _, resident = json.loads(samples.read_text())[-1]
    assert done == 50
    assert resident > 1
    assert "polyline" in svg.read_text()


def test_memory_that_grows_is_not_flat() -> None:
    flat = [soak.Sample(done, 1.0, 30.0) for done in range(0, 1000, 10)]
    assert soak.growth(flat) == 0
    assert soak.growth([soak.Sample(one.done, 1.0, 30.0 + one.done / 100) for one in flat]) > soak.ALLOWED
