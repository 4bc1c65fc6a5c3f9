"""The suites there are, by name."""

from __future__ import annotations

from .model import Suite
from .pool.works import POOL
from .processes.works import PROCESSES
from .servers.works import ON_POSTGRES, ON_REDIS
from .steps.works import STEPS_SUITE
from .tasks.works import TASKS

SUITES: dict[str, Suite] = {suite.name: suite for suite in (POOL, PROCESSES, TASKS, ON_REDIS, ON_POSTGRES, STEPS_SUITE)}
