"""A health check for Docker, which marks an unhealthy container but does not restart it.

It runs `bullpen probe` and kills each worker process that has not written its health file in time. The supervisor of
`--processes` then replaces that process; a worker without a supervisor ends, and Docker restarts its container. A
worker that still starts has no health file, and is not killed. Use it in containers only, where pids are their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

MAX_AGE = 60  # seconds


def main(max_age: float) -> int:
    probe = subprocess.run(
        ["bullpen", "probe", "--json", "--max-age", str(max_age)], stdout=subprocess.PIPE, text=True, check=False
    )
    report = json.loads(probe.stdout)
    for name, process in report["processes"].items():
        if process["age"] > max_age:
            print(f"{name} has not written for {process['age']:.0f} s: killing it")
            with contextlib.suppress(ProcessLookupError):
                os.kill(process["pid"], signal.SIGKILL)
    print(report["problem"] or "well")
    return probe.returncode


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else MAX_AGE))
