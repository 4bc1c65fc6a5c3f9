"""The app that ``bullpen worker`` is given, to be killed as a whole: tasks that take a while, at an address from the
environment.
"""

from __future__ import annotations

import os

from .ours import OursWaiting
from .trace import Trace

queue = OursWaiting(os.environ["BULLPEN_BENCH_ADDRESS"], Trace(os.environ["BULLPEN_BENCH_TRACE"])).queue
