"""`bullpen top`, driven by keys without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import DataTable, Sparkline, Static, TabbedContent

from bullpen import AsyncWorkerPool, TaskQueue, TaskStatus
from bullpen.cli.main import main
from bullpen.cli.top.live import FIRST_LINE, TaskScreen, TopApp
from bullpen.tasks.storage.memory import MemoryStorage
from tests.scenarios.support import PATIENCE
from tests.scenarios.web_support import add_worker

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(queue: TaskQueue) -> AsyncIterator[tuple[TopApp, Pilot[None]]]:
    app = TopApp(queue)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.pictures > 0)
        yield app, pilot


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await pilot.pause(0.01)


def shown(app: TopApp, tab: str) -> list[list[str]]:
    table: DataTable[Any] = app.query_one(f"#{tab}-table", DataTable)
    return [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]


async def show_tab(app: TopApp, pilot: Pilot[None], key: str) -> None:
    await pilot.press(key)
    before = app.pictures
    app.refresh_picture()
    await until(pilot, lambda: app.pictures > before + 1)


@asynccontextmanager
async def a_queue() -> AsyncIterator[tuple[TaskQueue, str]]:
    """With a failed task, one that waits, and a schedule."""
    async with TaskQueue("memory://") as queue:

        @queue.task(name="shop.charge", cron="0 3 * * *")
        async def charge(order: int = 0) -> None:
            raise ValueError("card \x1b[31m[bold]rejected")

        async with AsyncWorkerPool(queue):
            job = await charge.aenqueue(1)
            async with asyncio.timeout(PATIENCE):
                while await job.astatus() != "failed":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            yield queue, job.id


async def test_every_tab_shows_what_is_there_and_escapes_it() -> None:
    async with a_queue() as (queue, task_id), opened(queue) as (app, pilot):
        assert [row[:3] for row in shown(app, "queues")] == [["default", "▶ open", "1"]]
        assert "1 failed" in str(app.query_one("#status", Static).content)
        await show_tab(app, pilot, "2")
        assert "✓ up for" in shown(app, "workers")[0][1]
        await show_tab(app, pilot, "3")
        (failed,) = [row for row in shown(app, "tasks") if row[0] == "✕ failed"]
        assert failed[5] == "ValueError: card \\x1b[31m[bold]rejected"
        await show_tab(app, pilot, "5")
        assert shown(app, "schedules")[0][0] == "shop.charge"
        await show_tab(app, pilot, "3")
        keys = [row[0] for row in shown(app, "tasks")]
        await pilot.press(*["down"] * keys.index("✕ failed"), "enter")
        await until(pilot, lambda: isinstance(app.screen, TaskScreen))
        words = str(app.screen.query_one(Static).content)
        assert task_id in words
        assert "raise ValueError" in words
        assert "\\x1b[31m[bold]rejected" in words
        assert "\x1b" not in app.export_screenshot()
        await pilot.press("escape")
        assert not isinstance(app.screen, TaskScreen)


async def test_what_the_doctor_says_is_counted_and_shown() -> None:
    async with TaskQueue("memory://") as queue:
        await queue.apause("mail")
        await queue.aenqueue("shop.send", queue="mail", elsewhere=True)
        async with opened(queue) as (app, pilot):
            tab = app.query_one("#tabs", TabbedContent).get_tab("attention")
            await until(pilot, lambda: tab.label_text == "6 Attention (1)")
            await show_tab(app, pilot, "6")
            ((mark, words),) = shown(app, "attention")
            assert (mark, words) == ("!", "1 task is pending in the queue 'mail', which is paused")
            await pilot.press("r")  # a finding cannot be retried
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, TaskScreen))
            assert "bullpen queues resume mail" in str(app.screen.query_one(Static).render())


async def test_the_first_line_has_lost_workers_and_failures_before_what_went_well() -> None:
    async with a_queue() as (queue, _):
        await add_worker(queue, "far")
        await (await queue.astorage()).save_worker(replace((await queue.aworkers())[0], id="gone", lost=True))
        async with opened(queue) as (app, _):
            words = str(app.query_one("#status", Static).render())
            assert " · 2 workers, 1 lost · 1 pending, 1 failed · " in words
    assert set(FIRST_LINE) == set(TaskStatus)
    assert FIRST_LINE.index(TaskStatus.FAILED) < FIRST_LINE.index(TaskStatus.SUCCESS)  # which is cut off first


async def test_keys_retry_a_whole_cause_and_pause_a_schedule() -> None:
    async with a_queue() as (queue, task_id):
        async with asyncio.timeout(PATIENCE):
            while not await queue.afailures():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await queue.apause("default")
        async with opened(queue) as (app, pilot):
            assert list(app.query_one("#waiting", Sparkline).data or [])[-1] == 1
            await pilot.press("R")  # no failure is chosen: nothing happens
            await show_tab(app, pilot, "5")
            await pilot.press("p")
            await until(pilot, lambda: "paused" in shown(app, "schedules")[0][3])
            assert [one.paused for one in await queue.schedules.alist()] == [True]
            await pilot.press("p")
            await until(pilot, lambda: "paused" not in shown(app, "schedules")[0][3])
            assert (await queue.aget(task_id)).status is TaskStatus.FAILED
            await show_tab(app, pilot, "4")
            await pilot.press("R")
            await until(pilot, lambda: list(app.query_one("#waiting", Sparkline).data or [])[-1] == 2)
            assert (await queue.aget(task_id)).status is TaskStatus.PENDING


async def test_keys_retry_cancel_pause_and_filter() -> None:
    async with a_queue() as (queue, task_id):
        await queue.apause("default")
        async with opened(queue) as (app, pilot):
            assert shown(app, "queues")[0][1] == "‖ paused"
            await pilot.press("p")
            await until(pilot, lambda: shown(app, "queues")[0][1] == "▶ open")
            assert await queue.apaused() == frozenset()
            await pilot.press("p")
            await until(pilot, lambda: shown(app, "queues")[0][1] == "‖ paused")
            await show_tab(app, pilot, "3")
            await pilot.press("slash", *"failed", "enter")
            await until(pilot, lambda: len(shown(app, "tasks")) == 1)
            await pilot.press("r")
            await until(pilot, lambda: not shown(app, "tasks"))
            assert (await queue.aget(task_id)).status is TaskStatus.PENDING
            await pilot.press("escape")
            await until(pilot, lambda: len(shown(app, "tasks")) == 2)
            await pilot.press("c")
            await until(pilot, lambda: any("cancelled" in row[0] for row in shown(app, "tasks")))


async def test_a_store_that_does_not_answer_blocks_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = asyncio.Event()
    counts: Callable[..., Awaitable[Any]] = MemoryStorage.counts

    async def slow(storage: MemoryStorage, limit: int | None = None) -> Any:
        await answers.wait()
        return await counts(storage, limit)

    monkeypatch.setattr(MemoryStorage, "counts", slow)
    async with TaskQueue("memory://") as queue:
        app = TopApp(queue)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("3")
            assert app.tab == "tasks"
            assert app.pictures == 0
            answers.set()
            await until(pilot, lambda: app.pictures > 0)


async def test_a_broken_store_is_named_and_the_view_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with TaskQueue("memory://") as queue, opened(queue) as (app, pilot):
        monkeypatch.setattr(queue, "acounts", _broken)
        app._reads.forget()
        app.refresh_picture()
        await until(pilot, lambda: "does not answer" in str(app.query_one("#status", Static).content))
        monkeypatch.undo()
        before = app.pictures
        app.refresh_picture()
        await until(pilot, lambda: app.pictures > before)


async def _broken(limit: int) -> None:
    raise OSError("no route to host")


def test_it_needs_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", f"sqlite:///{tmp_path}/jobs.db"]) == 2
    assert "needs a terminal" in capsys.readouterr().err
