"""When a task runs again and again: by cron text, in a time zone. Pure: the time is an argument."""

from __future__ import annotations

from typing import Literal

import msgspec

Misfire = Literal["run", "skip"]
Overlap = Literal["skip", "queue", "allow"]

MISFIRE_GRACE = 60.0


class Schedule(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The terms of a schedule, apart from those of its task. One without `cron` goes by the task's interval."""

    key: str = ""  # by which it is known; "" if only by the id of its task
    declared: bool = False  # on its function, in the code, which is where it is changed
    cron: str | None = None
    timezone: str = "UTC"
    misfire: Misfire = "run"  # what becomes of times that pass while nothing can run it
    misfire_grace: float = MISFIRE_GRACE  # seconds that a run may be late before its time has passed
    overlap: Overlap = "skip"  # what becomes of times that come while it runs
