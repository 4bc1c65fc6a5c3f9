"""An app for ``huey_consumer``, on SQLite or Redis."""

from __future__ import annotations

import os
from importlib import import_module

from .clock import note_time

_server, _, _place = os.environ["BULLPEN_BENCH_ADDRESS"].partition("?prefix=")
if _place:
    huey = import_module("huey").RedisHuey(_place, url=_server)
else:
    huey = import_module("huey").SqliteHuey("bench", filename=_server.removeprefix("sqlite:///"))
note = huey.task(name="note")(note_time)


def enqueue() -> None:
    note()
