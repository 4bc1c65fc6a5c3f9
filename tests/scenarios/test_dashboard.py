"""The pages of the dashboard show the store, and its actions change it."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from bullpen import RESULT, AsyncWorkerPool, Pool, Pools, TaskQueue, chain, current_task, group
from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.tasks.model.failure_groups import FailureExample, FailureRow
from bullpen.tasks.model.task import AttemptError, Task, TaskStatus
from bullpen.web import dashboard, events, views
from bullpen.web import graph as graph_module
from tests.scenarios.web_support import ORIGIN, TOKEN, Browser, add_worker, fill, make_queue, site, wait_for_approval
from tests.stores import KINDS, new_store

PAGES = ("/", "/queues", "/tasks", "/failures", "/workers", "/functions", "/schedules", "/waits", "/limits", "/system")


@pytest.mark.anyio
async def test_pages_show_queues_tasks_workers_schedules_and_limits(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        sent, failed = await fill(queue)
        await queue.aset_limit("reports", max_running=2)
        await add_worker(queue, "host-a-1")
        shown = {path: (await browser.get(path)).text for path in PAGES}
        assert "which is paused" in shown["/"]  # the doctor
        assert "Attempts that ended in each minute" in shown["/"]
        assert "2 retried" not in shown["/"]
        assert "1 retried" in shown["/"]
        assert "To continue: <code>bullpen queues resume mail</code>" in shown["/"]
        assert "mail" in shown["/queues"]
        assert "paused" in shown["/queues"]
        assert sent in shown["/tasks"]
        assert failed in shown["/tasks"]
        assert "host-a-1" in shown["/workers"]
        assert "At 02:30 every day" in shown["/schedules"]
        assert "0 of 2" in shown["/limits"]
        assert "sqlite:///" in shown["/system"]
        page = (await browser.get(f"/tasks/{failed}")).text
        assert "It failed at" in page
        assert page.count("ValueError: no address: nobody") >= 3  # why, and both attempts
        assert "Traceback" in page


@pytest.mark.anyio
async def test_of_many_workers_a_hundred_are_shown(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        for number in range(120):
            await add_worker(queue, f"worker-{number}")
        page = (await browser.get("/workers")).text
        assert page.count('<li data-key="worker-') == 100
        assert "and 20 more" in page


@pytest.mark.anyio
async def test_pools_of_the_program_are_shown_with_the_workers(tmp_path: Path) -> None:
    with Pool(2, name="images") as pool, Pools(gpu=Pool(1)) as others:
        async with site(tmp_path, pools=[pool, others]) as (_, app), Browser(app) as browser:
            pool.submit(len, "ab").result(timeout=60)
            with pytest.raises(ValueError, match="no"):
                pool.submit(int, "no").result(timeout=60)
            page = (await browser.get("/workers")).text
            row = page.partition('<tr data-key="images ')[2].partition("</tr>")[0]
            assert "0 of 2" in row
            assert '<td class="n" data-label="completed">1</td>' in row
            assert '<span class="bad">1</span>' in row
            assert 'data-key="gpu ' in page
    async with site(tmp_path) as (_, app), Browser(app) as browser:
        assert "Pools of this program" not in (await browser.get("/workers")).text
    with pytest.raises(InvalidOptionType, match="pools"):
        dashboard(make_queue(tmp_path), token=TOKEN, pools=["images"])  # type: ignore[list-item]


@pytest.mark.anyio
@pytest.mark.parametrize(("more", "newest"), [("", False), ("&function=shop.send", True)])
async def test_tasks_are_filtered_by_the_address_and_come_in_pages(tmp_path: Path, more: str, newest: bool) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await queue.aenqueue("shop.send", ["first"])
        for number in range(120):
            await queue.aenqueue("shop.send", [f"{number}"], queue="bulk")
        seen: list[str] = []
        address = f"/tasks?queue=bulk&status=pending{more}"
        while address:
            page = (await browser.get(address)).text
            found = [part.partition('"')[0] for part in page.split('<tr data-key="')[1:]]
            assert 0 < len(found) <= 50
            seen += found
            _, link, rest = page.partition('<a rel="next" href="')
            address = html.unescape(rest.partition('"')[0]) if link else ""
        assert len(seen) == len(set(seen)) == 120
        assert seen == sorted(seen, reverse=newest)
        assert "No task matches" in (await browser.get("/tasks?error=ConnectionError")).text
        wrong = await browser.get("/tasks?status=pending&after=x&due=soon")
        assert (wrong.status_code, "due must be a number of seconds" in wrong.text) == (400, True)


@pytest.mark.anyio
async def test_tasks_are_found_by_key_header_and_time_the_newest_first(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        first, second = await fill(queue)
        for one in ("a", "b"):
            await queue.aenqueue("shop.send", [one], unique_key=f"k-{one}", headers={"tenant": one})

        async def found(query: str) -> list[str]:
            page = (await browser.get(f"/tasks?{query}")).text
            return [part.partition('"')[0] for part in page.split('<tr data-key="')[1:]]

        (with_key,) = await found("key=k-a")
        (with_header,) = await found("header=tenant%3Db")
        assert (await queue.aget(with_key)).headers == {"tenant": "a"}
        assert (await queue.aget(with_header)).unique_key == "k-b"
        assert [one for one in await found("within=hour") if one in (first, second)] == [second, first]
        assert [one for one in await found("") if one in (first, second)] == [second, first]
        assert (await browser.get("/tasks?header=tenant")).status_code == 400
        assert (await browser.get("/tasks?within=year")).status_code == 400
        assert "failed tasks, header tenant=b" in (await browser.get("/bulk?verb=retry&header=tenant%3Db")).text


@pytest.mark.anyio
async def test_behind_a_long_backlog_ended_tasks_are_listed_oldest_first_unless_the_address_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MOST_COUNTED", 1)  # a short backlog is long
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        done = (await fill(queue, [f"{number}@example.org" for number in range(3)]))[:3]
        oldest = (await browser.get("/tasks?status=success")).text
        assert "Oldest first." in oldest
        assert oldest.index(done[0]) < oldest.index(done[2])
        newest = (await browser.get("/tasks?status=success&order=newest")).text
        assert newest.index(done[2]) < newest.index(done[0])


@pytest.mark.anyio
async def test_the_attention_list_resumes_a_paused_queue_and_links_what_it_names(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await fill(queue)  # it pauses the queue mail
        page = (await browser.get("/")).text
        assert '<a href="/tasks?status=pending&amp;queue=mail">Pending tasks</a>' in page
        assert 'action="/queues/resume"' not in page  # before the login
        assert "verb=retry" not in page
        await browser.log_in()
        assert 'action="/queues/resume"' in (await browser.get("/")).text


@pytest.mark.anyio
async def test_pending_tasks_are_in_the_order_in_which_they_are_due(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        later = await queue.aenqueue("shop.send", ["later"], delay=60)
        soon = await queue.aenqueue("shop.send", ["soon"], priority=2)
        page = (await browser.get("/tasks?status=pending")).text
        assert page.index(f'<tr data-key="{soon.id}') < page.index(f'<tr data-key="{later.id}')


@pytest.mark.anyio
async def test_an_operator_pauses_resumes_cancels_retries_and_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bullpen.web")
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        _, failed = await fill(queue)
        assert (await browser.log_in()).headers["location"] == "/"
        done = await browser.act("/queues/pause", queue="default")
        assert (done.status_code, done.headers["location"]) == (303, "/queues?done=paused")
        assert await queue.apaused() == {"default", "mail"}
        assert (await browser.get("/queues")).text.count('action="/queues/resume"') == 2  # the page is fresh
        await browser.act("/queues/resume", queue="default")
        assert await queue.apaused() == {"mail"}
        await browser.act("/task/retry", task=failed)
        assert (await queue.aget(failed)).status == "pending"
        await browser.act("/task/cancel", task=failed)
        assert (await queue.aget(failed)).status == "cancelled"
        await browser.act("/schedules/pause", key="shop.nightly")
        assert (await queue.schedules.aget("shop.nightly")).paused
        await browser.act("/schedules/resume", key="shop.nightly")
        assert not (await queue.schedules.aget("shop.nightly")).paused
        assert (await browser.act("/schedules/run", key="shop.nightly")).status_code == 303
        told = [record.getMessage() for record in caplog.records if record.name == "bullpen.web"]
        assert "audit: token at 127.0.0.1 paused the queue default" in told
        assert f"audit: token at 127.0.0.1 cancelled the task {failed}" in told
        assert "Paused. Running tasks continue." in (await browser.get("/queues?done=paused")).text
        assert "evil" not in (await browser.get("/queues?done=evil")).text


@pytest.mark.anyio
async def test_an_operator_changes_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.web")
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await queue.aset_limit("reports", max_running=2)
        assert 'action="/limits/set"' not in (await browser.get("/limits")).text  # a visitor only looks
        await browser.log_in()
        terms = {"max_running": "", "max_running_per_key": "", "rate": "0.5", "in_order": "yes"}
        done = await browser.act("/limits/set", queue="reports", **terms)
        assert (done.status_code, done.headers["location"]) == (303, "/limits?done=limited")
        (limit,) = await queue.alimits()
        assert (limit.max_running, limit.max_running_per_key, limit.rate, limit.in_order) == (None, None, 0.5, True)
        told = "audit: token at 127.0.0.1 limited the queue reports: at most 0.5 per second, in order per key"
        assert told in [record.getMessage() for record in caplog.records]
        for name, value in (("max_running", "many"), ("max_running", "1.5"), ("max_running", "-1"), ("rate", "nan")):
            rejected = await browser.act("/limits/set", queue="reports", **{name: value})
            assert (rejected.status_code, name in rejected.text) == (400, True)
        assert await queue.alimits() == [limit]


@pytest.mark.anyio
async def test_an_action_on_all_that_match_has_a_question_a_number_and_a_progress(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bullpen.web")
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await fill(queue)
        for _ in range(2500):
            await queue.aenqueue("shop.send", ["x@"], queue="bulk")
        await browser.log_in()
        page = (await browser.get("/tasks?queue=bulk&status=pending")).text
        assert "/bulk?status=pending&amp;queue=bulk&amp;verb=cancel" in page
        assert "verb=retry" not in page  # it does not apply to pending tasks
        page = (await browser.get("/bulk?verb=cancel&queue=bulk")).text
        assert "<strong>2,500</strong> tasks match: pending or running tasks, queue bulk." in page
        assert await queue.acount(status="cancelled") == 0  # it was only a question
        place = (await browser.act("/bulk/start", verb="cancel", queue="bulk")).headers["location"]
        assert await until(browser, place, "done") == "2500 of about 2500 tasks seen, 2500 changed."
        assert await queue.acount(queue="bulk", status="cancelled") == 2500
        place = (await browser.act("/bulk/start", verb="delete", queue="bulk", status="cancelled")).headers["location"]
        await until(browser, place, "done")
        assert await queue.acount(queue="bulk") == 0
        place = (await browser.act("/bulk/start", verb="retry")).headers["location"]
        assert await until(browser, place, "done") == "1 of about 1 tasks seen, 1 changed."  # of failed tasks
        assert await queue.acount(status="failed") == 0
        told = [record.getMessage() for record in caplog.records if record.name == "bullpen.web"]
        words = "pending or running tasks, queue bulk"
        assert f"audit: token at 127.0.0.1 began to cancel all {words} (2500)" in told
        assert f"audit: cancel, begun by token, of all {words}: done after 2500 tasks, 2500 changed" in told


async def until(browser: Browser, place: str, state: str) -> str:
    """Wait for the end of an action on many tasks; how many it has seen and changed."""
    while True:
        page = (await browser.get(place)).text
        if f"</span>{state}" in page:
            return page.partition("<p>")[2].partition("</p>")[0]
        await asyncio.sleep(0.02)


@pytest.mark.anyio
async def test_an_action_on_many_tasks_can_be_stopped_between_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await queue.aenqueue("shop.send", ["x@"], queue="bulk")
        await browser.log_in()
        begun, may_go_on = asyncio.Event(), asyncio.Event()

        async def slow(*, on_batch: Any, **filters: Any) -> int:
            on_batch(1000, 1000)
            begun.set()
            await may_go_on.wait()
            on_batch(2000, 2000)
            raise AssertionError("it was not stopped")

        monkeypatch.setattr(queue, "acancel_all", slow)
        place = (await browser.act("/bulk/start", verb="cancel")).headers["location"]
        await begun.wait()
        assert "1000 of about" in (await browser.get(place)).text
        await browser.act("/bulk/stop", run=place.rpartition("/")[2])
        assert "stopping" in (await browser.get(place)).text
        may_go_on.set()
        assert (await until(browser, place, "stopped")).startswith("2000 of about")
        assert (await browser.act("/bulk/stop", run="unknown")).status_code == 400


@pytest.mark.anyio
async def test_an_action_on_many_tasks_that_does_not_apply_is_rejected(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await fill(queue)
        for query in ("", "?verb=drop", "?verb=cancel&status=failed", "?verb=retry&status=pending"):
            assert (await browser.get(f"/bulk{query}")).status_code == 400, query
        assert (await browser.get("/bulk/unknown")).status_code == 400
        assert "<form" not in (await browser.get("/bulk?verb=retry")).text.partition("<main")[2]  # not logged in


@pytest.mark.anyio
async def test_without_the_token_a_page_is_read_only_and_shows_no_results(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        sent, _ = await fill(queue)
        for path in (*PAGES, f"/tasks/{sent}"):
            page = (await browser.get(path)).text
            assert 'method="post"' not in page
            assert "secret-result" not in page
            assert "ada@example.org" not in page  # an argument
        await browser.log_in()
        page = (await browser.get(f"/tasks/{sent}")).text
        assert "secret-result for ada@example.org" in page
        assert "&#34;to&#34;: &#34;ada@example.org&#34;" in page


@pytest.mark.anyio
async def test_arguments_are_shown_to_operators_without_secrets(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:

        @queue.task(name="shop.log_in", redact=("pin",))
        def log_in(user: str, password: str, pin: int) -> None: ...

        known = await queue.aenqueue("shop.log_in", ["ada", "hunter2"], {"pin": 4711})
        unknown = await queue.aenqueue("other.log_in", ["ada", "hunter2"], elsewhere=True)
        await browser.log_in()
        page = (await browser.get(f"/tasks/{known.id}")).text
        assert "&#34;user&#34;: &#34;ada&#34;" in page
        assert page.count("[redacted]") == 2
        assert "hunter2" not in page
        assert "4711" not in page
        page = (await browser.get(f"/tasks/{unknown.id}")).text
        assert "Its function is not known here" in page
        assert "hunter2" not in page


@pytest.mark.anyio
async def test_failures_are_grouped_by_their_cause_and_run_again(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        _, *failed = await fill(queue, ["ada@example.org", "nobody", "no one"])
        await browser.log_in()
        for address in ("/failures", "/failures?days=7"):
            page = (await browser.get(address)).text
            assert page.count("<strong>ValueError</strong>") == 1
            assert "4 times" in page  # two tasks, with one retry each
        link = html.unescape(page.partition('href="/bulk')[2].partition('"')[0])
        page = (await browser.get(f"/bulk{link}")).text
        assert "<strong>2</strong> tasks match" in page
        tasks = html.unescape((await browser.get("/failures")).text.partition('href="/tasks?')[2].partition('"')[0])
        page = (await browser.get(f"/tasks?{tasks}")).text
        assert all(one in page for one in failed)
        assert page.count("<tr data-key=") == 2
        assert (await browser.get("/failures?days=8")).status_code == 400


@pytest.mark.anyio
async def test_new_causes_rising_ones_and_poison_are_marked(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        storage = await queue.astorage()
        now = await storage.now()
        for name, kind, ago, many in (
            ("new", "exception", 0, 12),
            ("old", "exception", 0, 12),
            ("old", "exception", 5, 1),
            ("bad", "poison", 0, 3),
        ):
            at = int(now) // 3600 * 3600 - 3600 * ago
            example = FailureExample("id", kind, "", name, "")
            row = FailureRow(at, "default", f"shop.{name}", name, many, at + 1.0, at + 1.0, example)
            await storage.add_history([], [row])
        page = (await browser.get("/failures")).text
        marks = {name: page.partition(f">{name}</p>")[0].rpartition("<strong>")[2] for name in ("new", "old", "bad")}
        assert ["↗</span>new" in marks["new"], "↗</span>rising" in marks["old"], "poison" in marks["bad"]] == [True] * 3
        assert "↗" not in marks["bad"]


@pytest.mark.anyio
@pytest.mark.anyio
async def test_a_wrong_token_opens_no_session_and_many_close_the_login(tmp_path: Path) -> None:
    async with site(tmp_path) as (_, app), Browser(app) as browser:
        for _ in range(10):
            assert (await browser.log_in("not the token")).status_code == 403
        assert (await browser.log_in()).status_code == 429
        assert not browser.cookies


@pytest.mark.anyio
async def test_the_link_with_a_code_works_once(tmp_path: Path) -> None:
    async with site(tmp_path, login_code="a-code-for-one-login", anonymous=False) as (_, app):
        async with Browser(app) as browser:
            assert (await browser.get("/login?code=wrong")).status_code == 403
            assert (await browser.get("/login?code=a-code-for-one-login")).status_code == 303
            assert (await browser.get("/")).status_code == 200
            (cookie,) = browser.cookies.jar
            assert cookie.has_nonstandard_attr("HttpOnly")
            assert str(cookie.get_nonstandard_attr("SameSite")).lower() == "strict"
        async with Browser(app) as other:
            assert (await other.get("/login?code=a-code-for-one-login")).status_code == 403
            assert (await other.get("/")).status_code == 401


@pytest.mark.anyio
async def test_a_visitor_who_logs_out_is_out(tmp_path: Path) -> None:
    async with site(tmp_path, anonymous=False) as (queue, app), Browser(app) as browser:
        await fill(queue)
        await browser.log_in()
        assert (await browser.act("/logout")).headers["location"] == "/login"
        assert (await browser.get("/")).status_code == 401
        redirected = await browser.get("/", headers={"accept": "text/html"})
        assert (redirected.status_code, redirected.headers["location"]) == (303, "/login")


@pytest.mark.anyio
async def test_a_read_only_dashboard_changes_nothing(tmp_path: Path) -> None:
    async with site(tmp_path, read_only=True) as (queue, app), Browser(app) as browser:
        await fill(queue)
        await browser.log_in()
        assert 'action="/queues/' not in (await browser.get("/queues")).text
        rejected = await browser.post("/queues/pause", data={"queue": "default"}, headers={"origin": ORIGIN})
        assert rejected.status_code == 403
        assert await queue.apaused() == {"mail"}


@pytest.mark.anyio
async def test_a_mounted_dashboard_has_its_links_below_its_path(tmp_path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    async with site(tmp_path) as (queue, app):
        await fill(queue)
        async with Browser(Starlette(routes=[Mount("/ops/jobs", app)])) as browser:
            await browser.post("/ops/jobs/login", data={"token": TOKEN}, headers={"origin": ORIGIN})
            for path in PAGES:
                page = (await browser.get(f"/ops/jobs{path}")).text
                parser = Elements()
                parser.feed(page)
                assert all(link.startswith(("/ops/jobs/", "#")) for link in parser.links), parser.links
            csrf = await browser.csrf("/ops/jobs/queues")
            done = await browser.post(
                "/ops/jobs/queues/resume", data={"csrf": csrf, "queue": "mail"}, headers={"origin": ORIGIN}
            )
            assert done.headers["location"] == "/ops/jobs/queues?done=resumed"
            assert (await browser.get("/ops/jobs/static/style.css")).headers["content-type"].startswith("text/css")
    assert await queue.apaused() == frozenset()
    await queue.aclose()


@pytest.mark.anyio
async def test_the_event_stream_sends_the_live_part_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LONGEST", 2.5)  # then the stream ends
    monkeypatch.setattr(events, "EVERY", 0.1)
    async with site(tmp_path) as (queue, app), Browser(app, timeout=30) as browser:
        _, failed = await fill(queue)
        answer = await browser.get("/events", params={"view": f"/tasks/{quote(failed)}"})
        assert answer.headers["content-type"].startswith("text/event-stream")
        first = next(line for line in answer.text.splitlines() if line.startswith("data: "))
        page = (await browser.get(f"/tasks/{failed}")).text
        live = json.loads(first.removeprefix("data: "))
        assert "no address: nobody" in live
        assert live.partition("<h2")[2].partition(">")[0] in page
        for site_of_page in ("cross-site", "same-site", "none"):
            headers = {"sec-fetch-site": site_of_page}
            assert (await browser.get("/events", params={"view": "/"}, headers=headers)).status_code == 403
        for wrong in ("", "/login", "/nothing", "//evil.example/", "http://evil.example/", "/static/style.css"):
            assert (await browser.get("/events", params={"view": wrong})).status_code == 400


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/tasks/no-such-task", 404),
        ("/nothing", 404),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/tasks?status=unknown", 400),
        ("/tasks?queue=%22%3E%3Cscript%3E", 400),
        ("/tasks?function=" + "x" * 600, 400),
        ("/tasks?" + "a=1&" * 30, 400),
        ("/tasks?after=" + "x" * 5000, 414),
        ("/tasks/" + "x" * 5000, 414),
    ],
)
async def test_wrong_addresses_get_a_clear_answer(tmp_path: Path, path: str, status: int) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await queue.acounts()
        answer = await browser.get(path)
        assert answer.status_code == status, answer.text
        assert "<script>" not in answer.text


@pytest.mark.anyio
async def test_a_store_that_is_away_is_a_page_and_no_error(tmp_path: Path) -> None:
    queue = TaskQueue("redis://127.0.0.1:1/0")
    async with Browser(dashboard(queue, token=TOKEN, anonymous=True)) as browser:
        answer = await browser.get("/queues")
        assert (answer.status_code, "Not available" in answer.text) == (503, True)
    await queue.aclose()


def test_a_dashboard_that_would_serve_nobody_or_takes_wrong_options_is_rejected(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    with pytest.raises(InvalidOption, match="token"):
        dashboard(queue)
    with pytest.raises(InvalidOptionType, match="TaskQueue"):
        dashboard("sqlite:///jobs.db", token=TOKEN)  # type: ignore[arg-type]


class Elements(HTMLParser):
    """The elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.scripts: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given: dict[str, Any] = dict(attrs)
        self.attributes |= given.keys()
        self.links += [given[name] or "" for name in ("href", "src", "action") if name in given]
        if tag == "script":
            self.scripts.append(given.get("src"))


@pytest.mark.anyio
async def test_functions_have_percentiles_a_histogram_and_a_failure_rate(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await fill(queue)
        for since in ("hour", "day", "week"):
            page = (await browser.get(f"/functions?since={since}")).text
            row = page.partition('<tr data-key="shop.send">')[2].partition("</tr>")[0]
            assert "66.7 %" in row  # one success, one retry, one failure
            assert 'aria-label="3 runs by duration"' in row
        assert (await browser.get("/functions?since=year")).status_code == 400


@pytest.mark.anyio
async def test_a_task_shows_those_before_and_after_it_as_a_picture(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:

        @queue.task(name="shop.part")
        def part(number: int) -> int:
            return number

        @queue.task(name="shop.combine")
        def combine(numbers: list[int]) -> int:
            return sum(numbers)

        last = await chain(group(part.call(1), part.call(2)), combine.call(RESULT)).aenqueue()
        info = await queue.aget(last.id)
        assert len(info.after) == 2
        for task_id in (last.id, info.after[0]):
            page = (await browser.get(f"/tasks/{task_id}")).text
            picture = page.partition('<svg class="graph"')[2].partition("</svg>")[0]
            shown = 3 if task_id == last.id else 2
            assert picture.count('class="node"') == shown, picture
            assert picture.count("<path") == shown - 1
            assert picture.count('aria-current="true"') == 1
        (alone,) = [await queue.aenqueue("shop.send", ["x@"])]
        assert "<svg" not in (await browser.get(f"/tasks/{alone.id}")).text


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_shows_the_tasks_that_it_has_enqueued_and_they_show_it(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(address: str) -> None:
        async with TaskQueue(address) as queue:
            app = dashboard(queue, token=TOKEN, anonymous=True)

            @queue.task(name="shop.part")
            def part(number: int) -> int:
                return number

            @queue.task(name="shop.crawl")
            def crawl() -> None:
                parts = group(part.call(1), part.call(2))
                current_task().enqueue(parts.then(part.call(RESULT)))

            parent, other = await crawl.aenqueue(), await part.aenqueue(0)
            async with AsyncWorkerPool(queue, 2, poll_interval=0.05):
                await parent.aresult(timeout=60)
            children = await queue.alist(header=("bullpen-parent", parent.id))
            assert len(children) == 3
            reads = 0
            read_all = graph_module._find_children

            async def find_children(*given: Any) -> Any:
                nonlocal reads
                reads += 1
                return await read_all(*given)

            monkeypatch.setattr(graph_module, "_find_children", find_children)
            async with Browser(app) as browser:
                for _ in range(2):
                    page = (await browser.get(f"/tasks/{parent.id}")).text
                    assert page.count('class="node"') == 4
                    assert page.count('<path class="child"') == 2  # to the members; the last one depends on these
                    assert f'/tasks?header=bullpen-parent%3D{parent.id}">3</a>' in page
                    assert all(f"/tasks/{one.id}" in page for one in children)
                    assert other.id not in page
                assert reads == 1
                page = (await browser.get(f"/tasks/{children[0].id}")).text
                assert "Enqueued by" in page
                assert page.count(f'<a href="/tasks/{parent.id}"') == 1  # in the picture
                alone = (await browser.get(f"/tasks/{other.id}")).text
                assert "<svg" not in alone
                assert "Tasks it enqueued" not in alone
            monkeypatch.setattr(graph_module, "MOST_READ", 1)  # a busy store
            async with Browser(dashboard(queue, token=TOKEN, anonymous=True)) as browser:
                page = (await browser.get(f"/tasks/{other.id}")).text
                assert f'/tasks?header=bullpen-parent%3D{other.id}">search them all</a>' in page

    with new_store(kind, tmp_path, request) as address:
        asyncio.run(check(address))


@pytest.mark.anyio
async def test_a_failed_attempt_shows_its_black_box(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        job = await queue.aenqueue("shop.send", ["x"])
        storage = await queue.astorage()

        def fail(task: Task, now: float) -> Task:
            error = AttemptError(
                kind="crash", attempt=1, at=now, log=("12:00 <b>last words</b>",), exit_code=-9, peak_memory=300 << 20
            )
            return msgspec.structs.replace(task, status=TaskStatus.FAILED, errors=(error,), finished_at=now, attempt=1)

        await storage.change([job.id], fail)
        page = (await browser.get(f"/tasks/{job.id}")).text
        assert "12:00 &lt;b&gt;last words&lt;/b&gt;" in page
        assert "-9 (SIGKILL)" in page
        assert "300 MiB" in page


@pytest.mark.anyio
async def test_the_system_page_shows_versions_and_changes_also_after_a_restart(tmp_path: Path) -> None:
    audit_file = tmp_path / "audit.jsonl"
    async with site(tmp_path, audit_file=audit_file) as (queue, app), Browser(app) as browser:
        await add_worker(queue, "old")
        async with AsyncWorkerPool(queue, 1):
            assert "Changes are shown to visitors who have logged in" in (await browser.get("/system")).text
            await browser.log_in()
            await browser.act("/queues/pause", queue="mail")
            page = (await browser.get("/system")).text
            assert "not all the same" in page
            assert page.count('<tr data-key="') == 2
            assert "paused the queue mail" in page
            assert "--audit-file" not in page
    assert stat.S_IMODE(audit_file.stat().st_mode) == 0o600
    async with site(tmp_path, audit_file=audit_file) as (_, app), Browser(app) as browser:
        await browser.log_in()
        assert "paused the queue mail" in (await browser.get("/system")).text


@pytest.mark.anyio
async def test_a_schedule_shows_its_next_runs(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        await fill(queue)
        page = (await browser.get("/schedules")).text
        assert page.count('<span class="then">') == 2
        assert "At 02:30 every day (Europe/Berlin)" in page


@pytest.mark.anyio
async def test_open_waits_are_listed_and_an_operator_emits_the_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bullpen.web")
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        assert "No task waits for an event." in (await browser.get("/waits")).text
        (job,) = await wait_for_approval(queue, failures=1)
        page = (await browser.get("/waits")).text
        assert all(words in page for words in ("approved:42", "shop.checkout", job.id, "waiting"))
        assert "no limit" not in page
        assert 'action="/waits/emit"' not in page  # a visitor without a session
        assert "No task waits for this event." in (await browser.get("/waits?event=approved:43")).text
        await browser.log_in()
        assert 'action="/waits/emit"' in (await browser.get("/waits?event=approved:42")).text
        page = (await browser.get(f"/tasks/{job.id}")).text
        assert "Emit the event <code>approved:42</code>" in page
        assert "Kept steps of this run" in page
        for wrong in ("{", "ada", "NaN", "[" * 5000, '"\\ud800"', "1e999"):
            rejected = await browser.act("/waits/emit", event="approved:42", payload=wrong)
            assert rejected.status_code == 400, wrong
        assert (await browser.act("/waits/emit", payload="1")).status_code == 400
        done = await browser.act("/waits/emit", event="approved:42", payload='{"by": "ada"}')
        assert (done.status_code, done.headers["location"]) == (303, "/waits?done=emitted")
        page = (await browser.get("/waits?done=emitted")).text
        assert "Emitted." in page
        assert "it goes on" in page
        again = await browser.act("/waits/emit", event="approved:42", payload="null")
        assert again.headers["location"] == "/waits?done=emitted-before"
        async with AsyncWorkerPool(queue, 1, poll_interval=0.05):
            assert await job.aresult(timeout=60) == {"by": "ada"}
        assert "waited" in (await browser.get(f"/tasks/{job.id}")).text  # the wait is a kept step
        told = [record.getMessage() for record in caplog.records if record.name == "bullpen.web"]
        assert "audit: token at 127.0.0.1 emitted the event approved:42" in told


@pytest.mark.anyio
async def test_open_waits_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_SIZE", 1)
    async with site(tmp_path) as (queue, app), Browser(app) as browser:
        first, second = await wait_for_approval(queue, "a b", many=2)
        page = (await browser.get("/waits?event=a+b")).text
        assert first.id in page
        assert f"/waits?event=a+b&amp;after={first.id}" in page
        page = (await browser.get(f"/waits?event=a+b&after={first.id}")).text
        assert second.id in page
        assert "First page" in page
        assert "Next page" not in page
