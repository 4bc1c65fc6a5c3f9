"""The log of a worker on stderr, as text or as JSON.

Every line that a task writes has its id, attempt and queue. Bullpen's own lines have these fields; this module adds
them to lines of user code. No line has the arguments of a task.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from datetime import UTC, datetime
from types import TracebackType

from bullpen.errors import NoCurrentTask
from bullpen.escaping import escape, escape_json, escape_lines
from bullpen.tasks.model.context import current_task


def configure(level: str, *, as_json: bool, prefix: str = "") -> None:
    """Send the log of this process to stderr. "debug" applies to Bullpen only: other libraries stay at "info"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(name_the_task)
    if level != "debug":
        handler.addFilter(_is_news)
    handler.setFormatter(JsonFormatter(prefix) if as_json else TextFormatter(prefix))
    logging.basicConfig(level=max(logging.INFO, _number(level)), handlers=[handler], force=True)
    logging.getLogger("bullpen").setLevel(_number(level))
    logging.captureWarnings(True)


def _is_news(record: logging.LogRecord) -> bool:
    """Drop lines below WARNING of the pools inside a worker."""
    return record.name != "bullpen" or record.levelno > logging.INFO


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def name_the_task(record: logging.LogRecord) -> bool:
    """Add the fields of the current task to a record of user code."""
    if not hasattr(record, "task_id"):
        try:
            task = current_task()
        except NoCurrentTask:
            return True
        record.task_id, record.attempt, record.queue = task.id, task.attempt, task.queue
        record.task_name = task.name
    return True


class TextFormatter(logging.Formatter):
    """`2030-01-31 12:00:00.000 INFO    app.send (task 0199…, attempt 1, queue default): sent`

    Further lines of a record are indented, so that no data can forge a record.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = f"{prefix} | " if prefix else ""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        text = f"{at}.{int(record.msecs):03d} {record.levelname:<7} {escape(_about(record))}{record.getMessage()}"
        if record.exc_info:
            text += "\n" + "".join(_traceback(record)).rstrip()
        if record.stack_info:
            text += "\n" + self.formatStack(record.stack_info)
        first, *more = escape_lines(text).split("\n")
        return "\n".join([self._prefix + first, *(f"{self._prefix}  {line}" for line in more)])


def _about(record: logging.LogRecord) -> str:
    fields = vars(record)
    if "task_name" in fields:
        where = f"task {fields['task_id']}, attempt {fields['attempt']}, queue {fields['queue']}"
        return f"{fields['task_name']} ({where}): "
    return "" if record.name.startswith("bullpen") else f"{record.name}: "


def _traceback(record: logging.LogRecord) -> list[str]:
    """Without the leading frames of Bullpen."""
    assert record.exc_info is not None
    kind, error, frames = record.exc_info
    while hasattr(record, "task_id") and frames is not None and frames.tb_next is not None and _is_ours(frames):
        frames = frames.tb_next
    return traceback.format_exception(kind, error, frames)


def _is_ours(frames: TracebackType) -> bool:
    return str(frames.tb_frame.f_globals.get("__name__")).startswith("bullpen.tasks.worker")


class JsonFormatter(logging.Formatter):
    """One object per line: `time`, `level`, `logger`, `message`; lines of a task have `task_id`, `attempt`, `queue`."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._worker:
            line["worker"] = self._worker
        for name in ("task_id", "attempt", "queue"):
            if hasattr(record, name):
                line[name] = getattr(record, name)
        if record.exc_info:
            line["traceback"] = "".join(_traceback(record))
        import json  # imported late: most workers log text

        return escape_json(json.dumps(line, ensure_ascii=False, default=str))
