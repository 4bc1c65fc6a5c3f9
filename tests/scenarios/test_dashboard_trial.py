"""Five problems in a busy shop: an operator finds each from the overview, and follows its links only.

The shop has workers, usual failures, retries that wait and thousands of pending tasks.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bullpen import TaskStatus
from tests.scenarios.cli_support import Folder, Worker
from tests.scenarios.test_dashboard_browser import browsing

pytestmark = [
    pytest.mark.timeout(600),  # with the installation of the browser
    pytest.mark.leaks("the driver of the browser keeps descriptors until the loop is closed"),
]

SHOP = """
import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta

from bullpen import TaskQueue
from release import RELEASE

queue = TaskQueue("sqlite:///jobs.db?synchronous=normal")
queue.declare_limit("reports", max_running=1)


@queue.task(queue="mail", max_retries=3, backoff=600)
async def send(order: int) -> None:
    if order % 40 == 7:
        raise ConnectionError("mail.example.org rejected the connection")


@queue.task(queue="payments", max_retries=3, backoff=600)
async def charge(order: int) -> None:
    if RELEASE == 2:
        {"EUR": 5}["eur"]
    print("charged", flush=True)


@queue.task(queue="images")
def resize(path: str) -> None:
    if path == "broken.png":
        os.kill(os.getpid(), signal.SIGKILL)


@queue.task(queue="reports")
async def report(month: int) -> None:
    print("reporting", flush=True)
    await asyncio.sleep(3600 if month == 0 else 0)


@queue.task(queue="search")
async def index(product: int) -> None:
    print("indexing", flush=True)
    await asyncio.sleep(3600)


@queue.task(queue="newsletter")
async def tell(customer: int) -> None: ...
"""
ENQUEUE = """
send.enqueue_many([(order,) for order in range(80)])
charge.enqueue_many([(order,) for order in range(3)])
tell.enqueue_many([(customer,) for customer in range(3000)])
queue.pause("newsletter")
index.enqueue(1)
resize.enqueue("broken.png")
report.enqueue(0)
"""
LATER = """
long_ago = datetime.now(UTC) - timedelta(seconds=90)
report.using(eta=long_ago).enqueue_many([(month,) for month in range(1, 4)])
charge.enqueue_many([(order,) for order in range(20)])
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Folder, str, int]]:
    """The folder of the shop with its problems, the worker of the new release, and the pid of the dead worker."""
    folder = Folder(tmp_path, SHOP)
    folder.write("release.py", "RELEASE = 1\n")
    with ExitStack() as stack:

        def worker(*words: str) -> Worker:
            return stack.enter_context(folder.worker(*words))

        folder.python(ENQUEUE)
        worker("--lane", "mail,newsletter,reports:5").seen("reporting")
        images = worker("--lane", "images:1@process")
        old = worker("--queues", "payments")
        old.seen("charged", 3)
        assert old.stop() == 0
        dying = worker("--queues", "search")
        dying.seen("indexing")
        dying.send(signal.SIGKILL)
        dying.ends()
        images.seen(r"app\.resize \(task .*attempt 3.*crashed")
        folder.write("release.py", "RELEASE = 2\n")
        new = worker("--queues", "payments,search")
        (name,) = new.seen(r"worker (\S+) serves")
        folder.python(LATER)
        new.seen(r"app\.charge \(task .*failed; retrying", 20)
        new.seen("indexing")  # what the dead worker ran
        yield folder, name, dying.process.pid


@pytest.mark.anyio
async def test_five_planted_problems_are_found_from_the_overview_by_its_links(shop: tuple[Folder, str, int]) -> None:
    folder, new_worker, dead = shop
    async with browsing(folder) as (page, address):

        async def overview(words: str) -> Any:
            """The finding with these words, as soon as the overview has it."""
            await page.goto(f"{address}/")
            found = page.locator(".findings li", has_text=re.compile(words))
            await found.wait_for()
            assert await found.count() == 1
            return found

        async def follow(found: Any, label: str) -> None:
            await found.get_by_role("link", name=label, exact=True).click()
            await page.wait_for_load_state("load")

        # A failing function after a deployment: since when, where, and which worker has the new release.
        found = await overview(
            r"app\.charge began to fail .* ago: 20 of 2[03] attempts since then.* KeyError at \S+app\.py"
        )
        assert f"after the worker {new_worker} started" in await found.inner_text()
        await follow(found, "Latest task")
        assert f"on {new_worker}" in await page.locator(".timeline").inner_text()

        # A poison task: what killed its workers, its arguments, and the button that runs it again.
        found = await overview(r"app\.resize fails as poison: 3 attempts .* killed by SIGKILL")
        await follow(found, "Latest task")
        assert "failed as poison" not in await page.locator("h1").inner_text()
        text = await page.locator("main").inner_text()
        assert "as poison, after 3 crashes, and does not run again by itself" in text
        assert "-9 (SIGKILL)" in text
        assert "broken.png" in text
        assert await page.get_by_role("button", name="Run it again").is_visible()

        # A dead worker, and what became of its task: another worker runs it.
        found = await overview(rf"The worker \S+ \(pid {dead} on \S+\) is dead")
        await follow(found, "Tasks that crashed")
        await page.locator("tr", has_text="app.index").get_by_role("link").first.click()
        await page.wait_for_load_state("load")
        attempts = page.locator(".timeline li")
        assert [await attempts.nth(n).get_attribute("class") for n in range(2)] == ["running", "failed"]

        # A stuck limit: the task that holds it, for how long, and the limit.
        found = await overview(r"3 tasks are pending in the queue 'reports' behind its limit, .*: 1 of at most 1 tasks")
        await follow(found, "What runs")
        await page.locator("a[data-row]").click()
        await page.wait_for_selector("text=bullpen stack")
        found = await overview("behind its limit")
        await follow(found, "Limits")
        await page.click("tr[data-key=reports] summary")
        await page.fill("tr[data-key=reports] input[name=max_running]", "4")
        await page.get_by_role("button", name="Set the limit of reports").click()
        await page.wait_for_selector("text=Changed, for all workers.")

        # A paused queue, and the button that resumes it.
        found = await overview(r"3,?000 tasks are pending in the queue 'newsletter', which is paused")
        await found.get_by_role("button", name="Resume").click()
        await page.wait_for_selector("text=Resumed.")

        # Both are no problem any more, and usual failures never were one.
        await page.goto(f"{address}/")
        await page.wait_for_selector(".findings li")
        text = await page.locator(".findings").inner_text()
        assert all(words not in text for words in ("paused", "limit", "app.send"))
    assert folder.json("status", "--app", "app")["queues"]["newsletter"]["paused"] is False
    assert TaskStatus.FAILED in folder.json("status", "--app", "app")["queues"]["images"]
