"""`WorkerLost` for apps that catch `BrokenProcessPool`. Only loaded if the app has loaded that class, which is slow."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

from bullpen.errors import WorkerLost


class WorkerProcessLost(WorkerLost, BrokenProcessPool):
    """The worker process died while the request was on it. Other workers go on, unlike in `ProcessPoolExecutor`."""
