"""`WorkerLost` for apps that catch `BrokenProcessPool`. Only loaded if the app has loaded that class, which is slow.

The class has the name of its base, because logs and records of tasks name an error by its class.
"""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

from bullpen import errors

WorkerLost: type[errors.WorkerLost] = type(
    "WorkerLost", (errors.WorkerLost, BrokenProcessPool), {"__module__": __name__, "__doc__": errors.WorkerLost.__doc__}
)
