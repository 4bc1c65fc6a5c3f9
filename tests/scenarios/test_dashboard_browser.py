"""The dashboard in a real browser: live updates, clicks, keys, dark and light, and a screen as small as a phone.

`tests/chromium.py` finds the browser. Screenshots of every page are in the folder of the test.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import find_chromium
from tests.scenarios.cli_support import Folder
from tests.scenarios.test_dashboard_server import served

PAGES = ("", "queues", "tasks", "failures", "workers", "functions", "schedules", "waits", "limits", "system")

pytestmark = [
    pytest.mark.timeout(600),  # with the installation of the browser
    pytest.mark.leaks("the driver of the browser keeps descriptors until the loop is closed"),
]

APP = """
from bullpen import TaskQueue, current_task

queue = TaskQueue("sqlite:///jobs.db")


@queue.task(max_retries=0)
def fail(reason: str) -> None:
    raise ValueError(reason)


@queue.task(cron="30 2 * * *")
def nightly() -> None: ...


@queue.task
def add(a: int) -> int:
    current_task().progress(a, 10)
    return a
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path, APP)
    folder.python(
        """
        import contextlib, logging
        from bullpen import TaskFailed, WorkerPool
        logging.getLogger("bullpen").setLevel(logging.CRITICAL)
        jobs = [add.enqueue(1), add.enqueue(2), fail.enqueue("<img src=x onerror=alert(1)>")]
        queue.set_limit("reports", max_running=2)
        with WorkerPool(queue, 2):
            for job in jobs:
                with contextlib.suppress(TaskFailed):
                    job.result(timeout=60)
        add.using(queue="mail").enqueue(3)
        """
    )
    return folder


@asynccontextmanager
async def browsing(folder: Folder, **options: Any) -> AsyncIterator[tuple[Any, str]]:
    """A page that has logged in, and the address. Nothing may be reported on the console."""
    from playwright.async_api import async_playwright

    trouble: list[str] = []
    with served(folder) as (process, address):
        (token,) = process.seen(r"token +(\S+)$")
        async with async_playwright() as playwright:
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = await playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
            context = await browser.new_context(**options)
            page = await context.new_page()
            page.on("pageerror", lambda error: trouble.append(str(error)))
            page.on("console", lambda one: trouble.append(one.text) if one.type in ("error", "warning") else None)
            page.on("dialog", lambda dialog: trouble.append(f"a dialog: {dialog.message}"))
            if options.get("java_script_enabled", True):
                await page.goto(f"{address}/login")
                await page.fill("input[name=token]", token)
                await page.click("form.login button")
                await page.wait_for_selector("text=Log out")
                await page.wait_for_load_state("load")  # the scripts have run
            yield page, address
            await context.close()
            await browser.close()
    assert trouble == []


@pytest.mark.anyio
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_every_page_is_whole_in_light_and_dark_and_on_a_phone(folder: Folder, scheme: str, width: int) -> None:
    size = {"width": width, "height": 844}
    async with browsing(folder, color_scheme=scheme, viewport=size) as (page, address):
        for name in PAGES:
            await page.goto(f"{address}/{name}")
            await check(page, folder.path / f"{name or 'overview'}-{scheme}-{width}.png")
        await page.goto(f"{address}/tasks?status=failed")
        await page.click("a[data-row]")
        await page.click("summary")
        await check(page, folder.path / f"task-{scheme}-{width}.png")


async def check(page: Any, picture: Path) -> None:
    """The page is not wider than the screen, can be read, and says what its parts are."""
    await page.wait_for_selector("[data-state=live]")
    await page.screenshot(path=picture, full_page=True)
    beyond = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert beyond <= 0, f"{picture.name}: {beyond} px wider than the screen"
    assert await page.locator("h1").count() == 1
    assert await page.evaluate(UNLABELLED) == []
    assert await page.evaluate(LOW_CONTRAST) == []
    assert await page.evaluate(WRONG_STRUCTURE) == []


# The parts of an accessibility check that need no library: names of controls, and contrast of text (WCAG AA).
UNLABELLED = """
[...document.querySelectorAll("a, button, input:not([type=hidden]), select")].filter((one) => one.checkVisibility()
  && !(one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length || one.title)
).map((one) => one.outerHTML)
"""
# Landmarks, the order of headings and of the focus, names of pictures and headers of tables.
WRONG_STRUCTURE = """
(() => {
  const found = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  for (const one of ["main", "body > header", "body > footer"])
    if (all(one).length !== 1) found.push(`${all(one).length} of ${one}`);
  for (const nav of all("nav")) if (!nav.getAttribute("aria-label")) found.push("a nav without a name");
  for (const section of all("section"))
    if (!section.getAttribute("aria-label") && !document.getElementById(section.getAttribute("aria-labelledby")))
      found.push(`a section without a name: ${section.textContent.trim().slice(0, 30)}`);
  for (const picture of all("svg, img"))
    if (!picture.getAttribute("aria-label") && !picture.getAttribute("alt")) found.push("a picture without a name");
  for (const header of all("th")) if (!header.scope) found.push(`th without scope: ${header.textContent}`);
  const ids = all("[id]").map((one) => one.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`two of #${id}`);
  let level = 0;
  for (const heading of all("h1, h2, h3, h4")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) found.push(`${heading.tagName} after H${level}`);
    level = next;
  }
  if (all("[tabindex]").some((one) => one.tabIndex > 0)) found.push("a tabindex changes the order of the focus");
  const first = document.querySelector("a, button, input, select");
  if (!first.matches(".skip[href='#main']")) found.push("the first stop of the focus is not the skip link");
  if (document.documentElement.lang !== "en" || !document.title) found.push("no language or no title");
  return found;
})()
"""
LOW_CONTRAST = """
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = rgba(getComputedStyle(one).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.nodeValue.trim());
    if (!own || !one.checkVisibility() || one.classList.contains("hidden") || one.closest(".none")) continue;
    const [light, dark] = [luminance(rgba(getComputedStyle(one).color)), luminance(behind(one))].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push(`${one.tagName} ${one.className} "${one.textContent.trim().slice(0, 30)}" ${ratio}`);
  }
  return found;
})()
"""


@pytest.mark.anyio
async def test_changes_arrive_while_the_page_is_open_and_stop_when_it_is_paused(folder: Folder) -> None:
    async with browsing(folder) as (page, address):
        await page.goto(f"{address}/queues")
        await page.wait_for_selector("[data-state=live]")
        assert await page.locator("tr[data-key=fresh]").count() == 0
        folder.python('add.using(queue="fresh").enqueue(1)')
        await page.wait_for_selector("tr[data-key=fresh]")
        await page.keyboard.press("p")
        await page.wait_for_selector("[data-state=paused]")
        folder.python('add.using(queue="unseen").enqueue(1)')
        await page.keyboard.press("p")
        await page.wait_for_selector("tr[data-key=unseen]")


@pytest.mark.anyio
async def test_a_queue_is_paused_and_a_task_runs_again_by_clicks(folder: Folder) -> None:
    async with browsing(folder) as (page, address):
        await page.goto(f"{address}/queues")
        await page.click("tr[data-key=mail] button")
        await page.wait_for_selector("text=Paused. Running tasks continue.")
        assert folder.json("status", "--app", "app")["queues"]["mail"]["paused"] is True
        await page.click("tr[data-key=mail] button")
        await page.wait_for_selector("text=Resumed.")
        await page.goto(f"{address}/tasks?status=failed")
        await page.click("a[data-row]")
        await page.wait_for_selector("text=ValueError: <img src=x onerror=alert(1)>")
        await page.click("summary")
        assert await page.locator("pre").first.is_visible()
        await page.click("text=Run it again")
        await page.wait_for_selector("text=The task runs again.")
        await page.wait_for_selector(".lead >> text=pending")


@pytest.mark.anyio
async def test_all_tasks_that_match_run_again_by_clicks(folder: Folder) -> None:
    async with browsing(folder) as (page, address):
        await page.goto(f"{address}/tasks?status=failed")
        await page.click("text=Run again…")
        await page.wait_for_selector("text=1 task matches: failed tasks.")
        await page.click("button >> text=Run 1 task again")
        await page.wait_for_selector(".lead >> text=done")
        assert folder.json("status", "--app", "app")["queues"]["default"]["failed"] == 0


@pytest.mark.anyio
async def test_what_is_open_stays_open_when_the_page_changes(folder: Folder) -> None:
    async with browsing(folder) as (page, address):
        await page.goto(f"{address}/tasks?status=failed")
        await page.click("a[data-row]")
        await page.click("summary")
        before = await page.locator("time").first.inner_text()
        await page.wait_for_function("before => document.querySelector('time').innerText !== before", arg=before)
        assert await page.locator("details[open]").count() == 1


@pytest.mark.anyio
async def test_keys_lead_through_the_pages(folder: Folder) -> None:
    async with browsing(folder) as (page, address):
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url(f"{address}/tasks")
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.name") == "function"
        await page.keyboard.type("app.fail")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/tasks?*function=app.fail*", wait_until="load")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("h2#why")


@pytest.mark.anyio
async def test_the_theme_can_be_chosen_and_is_kept(folder: Folder) -> None:
    async with browsing(folder, color_scheme="light") as (page, address):
        await page.click("#theme")
        await page.goto(f"{address}/tasks")
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.anyio
async def test_pages_are_readable_without_javascript(folder: Folder) -> None:
    async with browsing(folder, java_script_enabled=False) as (page, address):
        for name in PAGES:
            await page.goto(f"{address}/{name}")
            assert await page.locator("h1").is_visible()
            assert not await page.locator("#live-state").is_visible()
        await page.goto(f"{address}/tasks")
        await page.select_option("select[name=status]", "failed")
        await page.click("form.filters button")
        await page.wait_for_url("**/tasks?status=failed*")
        assert await page.locator("a[data-row]").count() == 1
