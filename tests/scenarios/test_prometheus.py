"""Prometheus metrics, as its own client and parsers see them: collectors, the endpoint of a worker, alerts."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from bullpen import AsyncPool, InvalidOption, InvalidOptionType, Pool, Pools, TaskQueue, TaskStatus, WorkerPool
from bullpen.errors import StorageUnavailable
from bullpen.integrations import prometheus
from bullpen.integrations.prometheus import METRICS, BullpenCollector
from bullpen.tasks.model.history import PLACE_OF
from bullpen.tasks.storage.memory import MemoryStorage
from tests.docs.markdown import ROOT
from tests.scenarios.cli_support import APP, Folder, Worker
from tests.scenarios.support import Blocker, eventually

DEPLOY = ROOT / "examples" / "deploy"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: str) -> Samples:
    """By name and labels; each is there once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def scrape(*sources: Any) -> Samples:
    registry = CollectorRegistry()
    registry.register(BullpenCollector(*sources))
    return samples_of(generate_latest(registry).decode())


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of all samples with these labels."""
    found = [one for (of, has), one in samples.items() if of == name and has >= labels.items()]
    assert found, f"no {name} with {labels} in {sorted(samples, key=str)}"
    return sum(found)


@pytest.fixture
def queue() -> Iterator[TaskQueue]:
    with TaskQueue("memory://") as queue:
        yield queue


# The collector.


def test_tasks_are_counted_by_queue_function_and_outcome(queue: TaskQueue) -> None:
    @queue.task(name="shop.send", queue="mail", max_retries=1, backoff=0.001)
    def send(to: str) -> None:
        time.sleep(0.005)  # the clock of uvloop counts milliseconds
        if not to:
            raise ValueError("no address")

    with WorkerPool(queue, lanes="mail:3 default:2") as worker:
        before = scrape(worker)
        assert value(before, "bullpen_task_outcomes_total", function="shop.send", outcome="failed") == 0
        send.enqueue("ada").result(timeout=30)
        send.enqueue("")
        assert eventually(lambda: value(scrape(worker), "bullpen_task_outcomes_total", outcome="failed") == 1)
        found = scrape(worker)
        labels = {"queue": "mail", "function": "shop.send"}
        assert value(found, "bullpen_tasks_started_total", **labels) == 3
        for outcome in PLACE_OF:
            expected = 1 if outcome in ("success", "retried", "failed") else 0
            assert value(found, "bullpen_task_outcomes_total", **labels, outcome=outcome) == expected
        assert value(found, "bullpen_task_run_seconds_count", **labels) == 3
        assert value(found, "bullpen_task_wait_seconds_count", **labels) == 3
        assert value(found, "bullpen_task_run_seconds_sum", **labels) > 0
        assert value(found, "bullpen_worker_slots", lane="mail") == 3
        assert value(found, "bullpen_worker_running", lane="default") == 0
        assert value(found, "bullpen_worker_claiming", lane="mail") == 1


def test_buckets_are_cumulative_and_end_with_the_count(queue: TaskQueue) -> None:
    @queue.task(name="work")
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    with WorkerPool(queue) as worker:
        for job in [work.enqueue(seconds) for seconds in (0.0, 0.0, 0.02)]:
            job.result(timeout=30)
        assert eventually(lambda: value(scrape(worker), "bullpen_task_run_seconds_count") == 3)
        found = scrape(worker)
    buckets = sorted(
        (float(dict(labels)["le"]), count)
        for (name, labels), count in found.items()
        if name == "bullpen_task_run_seconds_bucket"
    )
    assert [bound for bound, _ in buckets[:3]] == [0.0016, 0.0032, 0.0064]
    assert buckets[-1] == (float("inf"), 3)
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert dict(buckets)[0.0128] < 3  # the third one slept for longer
    assert value(found, "bullpen_task_run_seconds_sum") > 0.0128


def test_a_counter_never_falls_while_counts_are_written_to_the_store(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bullpen.tasks.worker.heartbeat.WRITE_EVERY", 0.0)
    monkeypatch.setattr("bullpen.tasks.worker.heartbeat.UPKEEP_EVERY", 0.001)

    @queue.task(name="work")
    async def work() -> None: ...

    seen = [0.0]

    def look() -> bool:
        seen.append(value(scrape(worker), "bullpen_task_outcomes_total", outcome="success"))
        return seen[-1] == 300

    with WorkerPool(queue, concurrency=4) as worker:
        work.enqueue_many([() for _ in range(300)])
        assert eventually(look)
    assert seen == sorted(seen)
    assert value(scrape(worker), "bullpen_task_outcomes_total", outcome="success") == 300  # also when it has stopped


def test_the_store_is_seen_by_queue(queue: TaskQueue) -> None:
    @queue.task(name="work")
    def work() -> None: ...

    work.using(queue="mail").enqueue()
    work.using(queue="later", delay=3600).enqueue()
    for _ in range(101):  # enqueued before the oldest one that is due
        work.using(queue="mixed", delay=3600).enqueue()
    work.using(queue="mixed", priority=7).enqueue()
    queue.pause("mail")
    found = scrape(queue)
    assert value(found, "bullpen_queue_oldest_seconds", queue="mixed") > 0
    assert value(found, "bullpen_queue_tasks", queue="mail", status="pending") == 1
    assert value(found, "bullpen_queue_tasks", queue="mail", status="failed") == 0
    assert value(found, "bullpen_queue_paused", queue="mail") == 1
    assert value(found, "bullpen_queue_paused", queue="later") == 0
    assert value(found, "bullpen_queue_workers", queue="mail") == 0
    assert value(found, "bullpen_queue_oldest_seconds", queue="mail") > 0
    assert value(found, "bullpen_queue_oldest_seconds", queue="later") == 0  # it is not due
    assert value(found, "bullpen_store_up") == 1
    queue.resume("mail")
    with WorkerPool(queue, lanes="mail:1 later:1"):
        found = scrape(queue)
        assert value(found, "bullpen_queue_workers", queue="mail") == 1
        assert value(found, "bullpen_workers", state="up") == 1


def test_scrapes_share_a_read_of_the_store(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[None] = []
    read_store = prometheus.read_store

    async def counted(of: TaskQueue) -> Any:
        reads.append(None)
        return await read_store(of)

    monkeypatch.setattr(prometheus, "read_store", counted)
    collector = BullpenCollector(queue)
    for _ in range(20):
        list(collector.collect())
    assert len(reads) == 1
    monkeypatch.setattr(prometheus, "FRESH", 0.0)
    monkeypatch.setattr(prometheus, "REST", 0.0)
    list(collector.collect())
    assert len(reads) == 2


def test_a_store_that_fails_is_shown_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(MemoryStorage):
        async def counts(self, limit: int | None = None) -> Any:
            raise StorageUnavailable("no answer", storage="memory")

    with TaskQueue(Broken()) as queue, Pool(1, name="web") as pool:
        found = scrape(queue, pool)
    assert value(found, "bullpen_store_up") == 0
    assert value(found, "bullpen_pool_max_workers", pool="web") == 1
    assert not any(name == "bullpen_queue_tasks" for name, _ in found)


def test_a_store_that_hangs_holds_up_no_scrape_and_costs_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "PATIENCE", 0.01)
    let_go = threading.Event()

    class Hanging(MemoryStorage):
        async def counts(self, limit: int | None = None) -> Any:
            while not let_go.is_set():  # noqa: ASYNC110 — another thread sets it
                await asyncio.sleep(0.001)
            return await super().counts(limit)

    with TaskQueue(Hanging()) as queue, Pool(1, name="web") as pool:
        collector = BullpenCollector(queue, pool)
        for _ in range(5):
            names = {family.name for family in collector.collect()}
            assert "bullpen_pool_queued" in names
            assert "bullpen_store_up" not in names
        assert sum(thread.name == "bullpen-metrics-store" for thread in threading.enumerate()) == 1
        let_go.set()
        assert eventually(lambda: "bullpen_store_up" in {family.name for family in collector.collect()})
        assert eventually(lambda: "bullpen-metrics-store" not in {thread.name for thread in threading.enumerate()})


@pytest.mark.anyio
async def test_a_scrape_on_an_event_loop_does_not_wait_for_the_store(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would block the loop; an endpoint of a web app may scrape there."""
    waits: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _self, timeout=None: waits.append(timeout or -1.0))
    collector = BullpenCollector(queue)
    list(collector.collect())
    monkeypatch.undo()
    assert 2.0 not in waits
    while not any(one.name == "bullpen_store_up" for one in collector.collect()):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.anyio
async def test_pools_are_seen_by_name_and_side() -> None:
    with (
        Blocker() as blocker,
        Pool(1, name="web", max_queue=0) as pool,
        Pools(gpu={"max_workers": 2}, cpu={"max_workers": 3}) as pools,
    ):
        async with AsyncPool(2, name="io") as aio:
            await aio.do(asyncio.sleep, 0)
            running = pool.submit(blocker)
            blocker.wait_entered()
            assert not pool.serve(print)
            await asyncio.wrap_future(pools.submit(abs, -1))
            found = scrape(pool, pools, aio, pool)
            blocker.release()
            running.result()
    assert value(found, "bullpen_pool_running", pool="web") == 1
    assert value(found, "bullpen_pool_rejected_total", pool="web") == 1
    assert value(found, "bullpen_pool_workers", pool="web", state="busy") == 1
    assert value(found, "bullpen_pool_max_workers", pool="cpu") == 3
    assert value(found, "bullpen_pool_outcomes_total", pool="gpu", outcome="completed") == 1
    assert value(found, "bullpen_pool_outcomes_total", pool="io", side="coroutines", outcome="completed") == 1
    assert value(found, "bullpen_pool_outcomes_total", pool="io", side="threads", outcome="completed") == 0
    assert value(found, "bullpen_pool_wait_quantile_seconds", pool="gpu", quantile="0.99") >= 0


def test_a_worker_that_dies_is_counted() -> None:
    with Pool(1, name="cpu", runtime="process") as pool:
        pool.do(abs, -1)  # also one that has worked before
        pool.submit(os._exit, 3).exception()
        assert eventually(lambda: value(scrape(pool), "bullpen_pool_worker_deaths_total", pool="cpu") == 1)
        found = scrape(pool)
    assert value(found, "bullpen_pool_outcomes_total", pool="cpu", outcome="lost") == 1
    assert value(found, "bullpen_pool_worker_starts_total", pool="cpu") >= 1


def test_the_number_of_label_values_is_limited(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MOST_NAMES", 3)

    @queue.task(name="work")
    async def work() -> None: ...

    names = [f"tenant-{number}" for number in range(6)]
    with WorkerPool(queue, lanes="tenant-*:4") as worker:
        for job in [work.using(queue=name).enqueue() for name in names]:
            job.result(timeout=30)
        assert eventually(lambda: value(scrape(worker), "bullpen_tasks_started_total") == len(names))
        found = scrape(worker, queue)
    for metric, label in (("bullpen_tasks_started_total", "queue"), ("bullpen_queue_tasks", "queue")):
        values = {dict(labels)[label] for name, labels in found if name == metric}
        assert len(values) == 4
        assert "(others)" in values
    assert value(found, "bullpen_queue_tasks", status="success") == len(names)


def test_both_formats_can_be_parsed_and_names_follow_the_conventions(queue: TaskQueue) -> None:
    hostile = 'a"b\\c\nd'

    @queue.task(name="work")
    async def work() -> None: ...

    with WorkerPool(queue) as worker, Pool(1, name=hostile) as pool:
        work.enqueue().result(timeout=30)
        pool.do(abs, -1)
        registry = CollectorRegistry()
        registry.register(BullpenCollector(queue, worker, pool))
        found = samples_of(generate_latest(registry).decode())
        text = openmetrics.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
        families = list(parse_openmetrics(text))  # type: ignore[no-untyped-call]
    assert value(found, "bullpen_pool_submitted_total", pool=hostile) == 1
    assert len(families) == len({family.name for family in families}) > 20
    for metric in METRICS.values():
        assert re.fullmatch(r"bullpen_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name
        assert metric.help.endswith((".", "; or 0."))
        assert not {"id", "task", "attempt", "worker", "request", "session"} & set(metric.labels), metric.name


@pytest.mark.parametrize("source", [None, "queue", TaskQueue])
def test_a_wrong_source_is_named(source: Any) -> None:
    with pytest.raises(InvalidOptionType, match="Pool, AsyncPool, Pools, TaskQueue, WorkerPool or AsyncWorkerPool"):
        BullpenCollector(source)


def test_two_queues_in_one_collector_are_rejected(queue: TaskQueue) -> None:
    with pytest.raises(InvalidOption, match="at most one TaskQueue"):
        BullpenCollector(queue, queue)


# `bullpen worker --metrics-port`.


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    app = APP + '\nfrom prometheus_client import Counter\n\norders = Counter("shop_orders", "Orders.")\norders.inc()\n'
    return Folder(tmp_path, app)


def url_of(worker: Worker) -> str:
    return worker.seen(r"metrics: (http://\S+)")[0]


def get(url: str, accept: str = "") -> tuple[int, str, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request("GET", parts.path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def seen_at(url: str) -> Samples:
    status, _, text = get(url)
    assert status == 200, text
    return samples_of(text)


def test_a_worker_serves_its_metrics(folder: Folder) -> None:
    with folder.worker("--metrics-port", "0") as worker:
        worker.runs()
        url = url_of(worker)
        assert url.startswith("http://127.0.0.1:")
        folder.python("add.enqueue(1).result(timeout=60)")
        assert eventually(lambda: value(seen_at(url), "bullpen_task_outcomes_total", outcome="success") == 1)
        found = seen_at(url)
        assert value(found, "bullpen_worker_slots", lane="default,mail") == 10
        assert value(found, "bullpen_queue_workers", queue="default") == 1
        assert value(found, "shop_orders_total") == 1  # of the app itself
        assert get(url.removesuffix("metrics"))[0] == 404
        _, kind, text = get(url, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")
        taken = folder.run("worker", "app", "--metrics-port", str(urlsplit(url).port))
        assert taken.returncode != 0
        assert (
            f"--metrics-port {urlsplit(url).port}: cannot listen on 127.0.0.1: Address already in use" in taken.stderr
        )
        assert "Traceback" not in taken.stderr
        assert worker.stop() == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_processes_are_merged_and_one_that_hangs_is_shown(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder.worker("--processes", "2", "--metrics-port", "0") as worker:
        worker.seen("serves default", 2)
        url = url_of(worker)
        folder.python("for _ in range(20): add.enqueue(1)")
        success = {"outcome": "success", "function": "app.add"}
        assert eventually(lambda: value(seen_at(url), "bullpen_task_outcomes_total", **success) == 20)
        found = seen_at(url)
        for process in ("worker-1", "worker-2"):
            assert value(found, "bullpen_worker_slots", process=process) == 10
            assert value(found, "bullpen_worker_process_up", process=process) == 1
            assert value(found, "shop_orders_total", process=process) == 1
        of_store = {labels for name, labels in found if name == "bullpen_queue_tasks"}
        assert not any("process" in dict(labels) for labels in of_store)  # it is the same for all
        assert value(found, "bullpen_queue_tasks", queue="default") > 0
        stopped = worker.children()[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            found = seen_at(url)
            assert value(found, "bullpen_worker_process_up") == 1  # one of two
            assert value(found, "bullpen_store_up") == 1  # the other one was asked
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert eventually(lambda: value(seen_at(url), "bullpen_worker_process_up") == 2)
        os.kill(stopped, signal.SIGKILL)
        worker.seen("starting another", 1)
        worker.seen("serves default", 3)
        assert eventually(lambda: value(seen_at(url), "bullpen_worker_process_up") == 2)
        assert worker.stop() == 0


def test_every_listed_metric_is_exposed_with_its_labels(queue: TaskQueue, folder: Folder) -> None:
    @queue.task(name="work")
    async def work() -> None: ...

    with WorkerPool(queue) as worker, Pool(1, name="web") as pool:
        work.enqueue().result(timeout=30)
        pool.do(abs, -1)
        found = dict(scrape(queue, worker, pool))
    with folder.worker("--processes", "2", "--metrics-port", "0") as workers:
        workers.runs()
        found.update({key: one for key, one in seen_at(url_of(workers)).items() if "process_up" in key[0]})
        assert workers.stop() == 0
    labels: dict[str, set[str]] = {}
    for name, has in found:
        metric = name if name in METRICS else re.sub("_(bucket|count|sum)$", "", name)
        labels.setdefault(metric, set()).update(dict(has).keys() - {"le"})
    assert labels == {name: set(metric.labels) for name, metric in METRICS.items()}


@pytest.mark.parametrize("module", ["prometheus", "prometheus_server"])
def test_a_missing_package_is_named(module: str) -> None:
    code = f"import sys; sys.modules['prometheus_client'] = None; import bullpen.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert 'pip install "pybullpen[prometheus]"' in done.stderr


# Alerts and the dashboard.


def expressions() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = [variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    return [
        *(rule["expr"] for group in rules["groups"] for rule in group["rules"]),
        *(target["expr"] for panel in board["panels"] for target in panel["targets"]),
        *asked,
    ]


VALUES = {
    "status": {str(status) for status in TaskStatus},
    "outcome": {*PLACE_OF, "completed", "failed", "cancelled", "timed_out", "queue_timeout", "lost"},
    "state": {"up", "stopping", "lost", "idle", "busy", "starting", "tainted"},
}
OF_PROMETHEUS = {"instance", "job", "le", "process"}


@pytest.mark.parametrize("expression", expressions())
def test_alerts_and_dashboard_use_existing_names_and_labels(expression: str) -> None:
    known = set(OF_PROMETHEUS)
    used = re.findall(r"\b(bullpen_\w+)(?:\{([^}]*)\})?", expression)
    assert used
    for name, matchers in used:
        plain = re.sub("_(bucket|count|sum)$", "", name)
        metric = METRICS[name if name in METRICS else plain]
        assert (metric.name == name) == (metric.type != "histogram"), f"{name} is a {metric.type}"
        known |= set(metric.labels)
        for label, operator, text in re.findall(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"', matchers):
            assert label in metric.labels, f"{name} has no label {label}"
            if operator == "=" and label in VALUES:
                assert text in VALUES[label], f"{label} is never {text}"
    for listed in re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression):
        assert set(re.findall(r"\w+", listed)) <= known, listed
    counters = [name for name, _ in used if name.endswith(("_total", "_bucket", "_sum", "_count"))]
    assert len(counters) == len(re.findall(r"\b(?:rate|increase)\(", expression)), "a counter is read by its rate"


def test_annotations_use_labels_that_the_alert_has() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        kept = re.search(r"\bby\s*\(([^)]*)\)", rule["expr"])
        names = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        if kept is not None:
            assert names <= set(re.findall(r"\w+", kept.group(1))), rule["alert"]


def test_the_legends_of_the_dashboard_name_labels_that_are_kept() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    for target in (target for panel in board["panels"] for target in panel["targets"]):
        kept = re.search(r"\bby\s*\(([^)]*)\)", target["expr"])
        names = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert names <= set(re.findall(r"\w+", kept.group(1) if kept else "")), target


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
def test_promtool_accepts_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", DEPLOY / "prometheus-alerts.yaml"], check=True)
