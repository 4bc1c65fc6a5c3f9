"""Makes the pictures of docs/how-to/dashboard.md: `python -m tests.docs.screenshots`, with a chromium on the PATH.

A shop whose mail server sometimes rejects an address, a paused queue, and an hour of history.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from pathlib import Path

from tests.docs.markdown import ROOT
from tests.scenarios.cli_support import Folder
from tests.scenarios.test_dashboard_server import served

SIZE = {"width": 1180, "height": 960}
APP = """
import time

from bullpen import TaskQueue, current_task

queue = TaskQueue("sqlite:///jobs.db")
queue.declare_limit("reports", max_running=2)


@queue.task(queue="mail", max_retries=2, backoff=0.1)
def send_receipt(order: int) -> str:
    if order % 40 == 7:
        raise ConnectionError("mail.example.org rejected the connection")
    return f"receipt for order {order} sent"


@queue.task(queue="reports")
def yearly_report(year: int) -> None:
    for month in range(600):
        current_task().progress(month + 140, 600, "orders")
        time.sleep(0.5)


@queue.task(cron="30 2 * * *", timezone="Europe/Berlin")
def clean_up() -> None: ...
"""
FILL = """
send_receipt.enqueue_many([(order,) for order in range(300)])
yearly_report.enqueue_many([(year,) for year in range(2026, 2031)])
send_receipt.using(queue="newsletter").enqueue_many([(order,) for order in range(48)])
queue.pause("newsletter")
"""


async def add_history(folder: Folder, rng: random.Random) -> None:
    from bullpen import TaskQueue
    from bullpen.tasks.model.history import HistoryRow

    async with TaskQueue(f"sqlite:///{folder.path}/jobs.db") as queue:
        storage = await queue.astorage()
        now = int(await storage.now()) // 60 * 60
        rows = []
        for minute in range(1, 61):
            many = 180 + 60 * (minute % 20 > 9) + rng.randrange(-40, 40)
            failed = rng.randrange(4) if minute < 12 else 0
            counts = (many + rng.randrange(-25, 25), many, many - failed, failed, 3 * failed)
            waits = (0,) * (14 + rng.randrange(2)) + (many // 2, many // 3, many // 6)
            runs = (0,) * 17 + (many // 5, many // 2, many // 5, many // 10 * (minute % 7 == 0))
            rows.append(HistoryRow(60, now - 60 * minute, "mail", "app.send_receipt", counts, waits, runs))
        await storage.add_history(rows)


async def take(folder: Folder, place: Path) -> None:
    from playwright.async_api import async_playwright

    with served(folder) as (process, address):
        (token,) = process.seen(r"token +(\S+)$")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
                args=["--no-sandbox"] if os.geteuid() == 0 else [],
            )
            for scheme, path in (("light", "/"), ("dark", "/tasks?error=ConnectionError&status=failed")):
                context = await browser.new_context(color_scheme=scheme, viewport=SIZE)
                page = await context.new_page()
                await page.goto(f"{address}/login")
                await page.fill("input[name=token]", token)
                await page.click("form.login button")
                await page.goto(address + path)
                if scheme == "dark":
                    await page.click("a[data-row]")
                await page.wait_for_selector("[data-state=live]")
                await page.wait_for_function("() => document.getAnimations().length === 0")
                if scheme == "light":
                    await asyncio.sleep(30)  # the lines of the backlog and the slots begin when the page is open
                await page.screenshot(path=place / f"dashboard-{scheme}.png")
                await context.close()
            await browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as path:
        place = Path(path) / "shop"
        place.mkdir()
        folder = Folder(place, APP)
        folder.python(FILL)
        with folder.worker("--concurrency", "8") as worker:
            worker.seen("has no retries left", 8)
            asyncio.run(add_history(folder, random.Random(7)))
            asyncio.run(take(folder, ROOT / "docs" / "assets"))
            worker.send()
            worker.send()


if __name__ == "__main__":
    main()
