"""Actions on all tasks that match: they run in the background, batch by batch, and can be stopped between batches."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Literal

from bullpen.errors import BullpenError
from bullpen.escaping import escape
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.web.parameters import WrongParameter
from bullpen.web.selection import TaskSelection, Verb

MOST_AT_ONCE = 4
KEPT = 50  # runs that ended

logger = logging.getLogger("bullpen.web")


class BulkRun:
    """One action on many tasks."""

    def __init__(self, verb: Verb, words: str, visitor: str, matching: int) -> None:
        self.id = secrets.token_hex(8)
        self.verb = verb
        self.words = words
        self.visitor = visitor
        self.matching = matching  # when it began
        self.seen = 0
        self.changed = 0
        self.state: Literal["running", "done", "stopped", "failed"] = "running"
        self.problem = ""
        self.is_stopping = False

    def note(self, seen: int, changed: int) -> None:
        """After each batch. Raises if it is to stop."""
        self.seen, self.changed = seen, changed
        if self.is_stopping:
            raise _BulkRunStopped


class _BulkRunStopped(Exception):
    """Ends a run between two batches."""


class BulkRuns:
    """The runs of one dashboard, in this process."""

    def __init__(self, queue: TaskQueue, changed: Callable[[], None]) -> None:
        self._queue = queue
        self._changed = changed  # called when a run has ended
        self._runs: dict[str, BulkRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, run_id: str) -> BulkRun | None:
        return self._runs.get(run_id)

    async def start(self, verb: Verb, selection: TaskSelection, visitor: str) -> BulkRun:
        if len(self._tasks) >= MOST_AT_ONCE:
            raise WrongParameter(f"{MOST_AT_ONCE} actions on many tasks are running; wait for one, or stop one")
        matching = await self._queue.acount(**selection.filters_for(verb))
        run = BulkRun(verb, selection.words_for(verb), visitor, matching)
        self._runs[run.id] = run
        for old in list(self._runs.values())[:-KEPT]:
            if old.state != "running":
                del self._runs[old.id]
        task = asyncio.get_running_loop().create_task(self._run(run, selection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def _run(self, run: BulkRun, selection: TaskSelection) -> None:
        queue = self._queue
        verbs = {"retry": queue.aretry_all, "cancel": queue.acancel_all, "delete": queue.apurge}
        try:
            await verbs[run.verb](on_batch=run.note, **selection.filters_for(run.verb))
            run.state = "done"
        except _BulkRunStopped:
            run.state = "stopped"
        except BullpenError as error:
            run.state, run.problem = "failed", str(error)
        finally:
            self._changed()
            message = "audit: %s, begun by %s, of all %s: %s after %d tasks, %d changed"
            words = (run.verb, escape(run.visitor), escape(run.words), run.state, run.seen, run.changed)
            logger.info(message, *words)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
