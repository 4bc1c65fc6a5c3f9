"""The memory of a worker over many tasks: ``python -m benchmarks.tasks.soak [--tasks N] [--svg FILE] [--json FILE]``.

One worker process runs no-ops, results kept for ten seconds, while this process enqueues and reads the resident
memory of the worker. Flat means: the median over the last fifth of the tasks is not above that over the second fifth
by more than `ALLOWED`. In the first fifth, caches fill and the pruning of results begins.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from benchmarks import chart
from bullpen.tasks.model.task import PENDING, RUNNING

from .ours import Ours, in_file
from .remote import running
from .settings import CONCURRENCY, new_folder

TASKS = 1_000_000
BATCH = 10_000
RESULT_TTL = 10.0  # seconds
ALLOWED = 4.0  # MiB
EVERY = 0.25  # seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """The worker after so many tasks."""

    done: int
    seconds: float
    resident: float  # MiB


def main(arguments: Sequence[str]) -> int:
    """Exit 0 if the worker's memory stayed flat, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks.soak", description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--svg", type=Path, help="a chart")
    parser.add_argument("--json", type=Path, help="every sample")
    options = parser.parse_args(arguments)
    samples = soak(options.tasks)
    grown = growth(samples)
    print(
        f"{samples[-1].done:,} tasks in {samples[-1].seconds:.0f} s, "
        f"{samples[-1].done / samples[-1].seconds:,.0f} tasks/s with a producer beside; "
        f"resident over the last fifth {_middle(samples, 0.8):.1f} MiB, {grown:+.1f} MiB since the second fifth"
    )
    if options.svg:
        options.svg.write_text(draw(samples), encoding="utf-8")
    if options.json:
        written = [[one.done, round(one.seconds, 2), round(one.resident, 2)] for one in samples]
        options.json.write_text(json.dumps(written) + "\n", encoding="utf-8")
    return 0 if grown <= ALLOWED else 1


def soak(count: int) -> list[Sample]:
    samples = []
    began, enqueued = monotonic(), 0
    with new_folder() as folder, running("bullpen", folder) as pid, Ours(in_file(folder)) as ours:
        noop = ours.noop.using(result_ttl=RESULT_TTL)
        while True:
            counts = ours.queue.counts().get("default", {})
            waiting = counts.get(PENDING, 0) + counts.get(RUNNING, 0)
            samples.append(Sample(enqueued - waiting, monotonic() - began, _resident(pid)))
            if enqueued < count and waiting < BATCH:
                batch = min(BATCH, count - enqueued)
                noop.enqueue_many([(number,) for number in range(batch)])
                enqueued += batch
            elif waiting == 0:
                return samples
            else:
                sleep(EVERY)


def growth(samples: Sequence[Sample]) -> float:
    """MiB, from the second fifth of the tasks to the last."""
    return _middle(samples, 0.8) - _middle(samples, 0.2)


def _middle(samples: Sequence[Sample], begin: float) -> float:
    """The median of a fifth of the way, from `begin` on; the nearest sample if there is none."""
    first, last = begin * samples[-1].done, (begin + 0.2) * samples[-1].done
    seen = [one for one in samples if first <= one.done <= last]
    return statistics.median(one.resident for one in seen or [min(samples, key=lambda one: abs(one.done - first))])


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def draw(samples: Sequence[Sample]) -> str:
    """Resident memory over the number of tasks."""
    left, right, top, bottom = 90, chart.WIDTH - 40, 90, 290
    most, highest = samples[-1].done, max(one.resident for one in samples) * chart.HEADROOM
    step = 10 if highest <= 100 else 50

    def place(done: float, resident: float) -> str:
        return f"{left + done / most * (right - left):.1f},{bottom - resident / highest * (bottom - top):.1f}"

    body = [
        chart.write(chart.MARGIN, 36, f"Memory of a worker over {most:,} tasks", "title"),
        chart.write(
            chart.MARGIN, 58, f"Resident, MiB · concurrency {CONCURRENCY} · results kept for {RESULT_TTL:g} s", "small"
        ),
    ]
    for level in range(0, int(highest) + 1, step):
        y = bottom - level / highest * (bottom - top)
        body += [chart.line(left, y, right, y, "grid"), chart.write(left - 8, y + 4, str(level), "small", "end")]
    for part in range(5):
        x = left + part / 4 * (right - left)
        body.append(chart.write(x, bottom + 18, f"{most * part // 4:,}", "small", "middle"))
    points = " ".join(place(one.done, one.resident) for one in samples)
    body.append(f'<polyline class="curve" points="{points}"/>')
    return chart.page(f"Memory of a worker over {most:,} tasks", bottom + 40, body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
