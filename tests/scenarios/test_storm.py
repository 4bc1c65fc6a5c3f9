"""A hundred submitters at once, doing everything a pool allows; half of the runs close it in the midst of that.

At the end the books are checked: every future ended exactly once, nothing ran twice, nothing ran that was cancelled or
expired, and the pool's own numbers say the same. `--thorough` makes it a long storm.
"""

from __future__ import annotations

import collections
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from bullpen import CallPolicy, NestedWait, Pool, PoolClosed, PoolSaturated, PoolState, RecyclePolicy, Timeout
from bullpen.pools.dispatch.states import RequestState

from .support import PATIENCE, eventually

SUBMITTERS = 100

POOLS: dict[str, dict[str, Any]] = {
    "unbounded": {},
    "bounded": {"max_queue": 50},
    "blocking": {"max_queue": 5, "when_full": "block"},
    "never queues": {"max_queue": 0},
}


class Expected(Exception):
    """What storming functions raise."""


@dataclass
class Call:
    """One submitted call: whether it ran, and how its future ended."""

    runs: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    future: Future[Any] | None = None


class Storm:
    """All that happens to one pool."""

    def __init__(self, pool: Pool, calls_each: int, seed: int) -> None:
        self.pool = pool
        self.calls: collections.deque[Call] = collections.deque()
        self.served: collections.deque[Call] = collections.deque()
        self.map_items: collections.deque[Call] = collections.deque()
        self.closed_early = False
        self.unexpected: list[BaseException] = []
        self.gave_up: collections.deque[Timeout] = collections.deque()
        self.seed = seed
        self.calls_each = calls_each
        self.running = self.most = 0
        self._gauge = threading.Lock()

    def run(self, call: Call, kind: int) -> int:
        """What every call does."""
        with self._gauge:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            call.runs.append(1)
            if kind == 0:
                raise Expected
            if kind == 1:
                time.sleep(0.0002)
            if kind == 2:
                self.nest()
            return kind
        finally:
            with self._gauge:
                self.running -= 1

    def nest(self) -> None:
        """Submit to the pool that this runs on, and wait."""
        call = Call()
        with self._gauge:
            self.running -= 1  # it does not run while it waits
        try:
            self.watch(call, self.pool.submit(self.run, call, 3)).result()
        except (PoolClosed, PoolSaturated, CancelledError):
            pass
        finally:
            with self._gauge:
                self.running += 1

    def watch(self, call: Call, future: Future[Any]) -> Future[Any]:
        call.future = future
        self.calls.append(call)
        future.add_done_callback(lambda _: call.ends.append(1))
        return future

    def submitter(self, number: int) -> None:
        dice = random.Random(f"{self.seed}/{number}")
        mine: collections.deque[Future[Any]] = collections.deque(maxlen=20)
        for _ in range(self.calls_each):
            try:
                self.one(dice, mine)
            except (PoolSaturated, PoolClosed):
                pass
            except Timeout as error:
                self.gave_up.append(error)
            except BaseException as error:
                self.unexpected.append(error)
                return

    def one(self, dice: random.Random, mine: collections.deque[Future[Any]]) -> None:
        pool, call, kind = self.pool, Call(), dice.randrange(8)
        choice = dice.random()
        if choice < 0.55:
            mine.append(self.watch(call, pool.submit(self.run, call, kind)))
        elif choice < 0.65:
            self.watch(call, pool.submit(self.run, call, kind)).cancel()
        elif choice < 0.72:
            limits = {dice.choice(["timeout", "queue_timeout"]): dice.random() * 0.004 + 0.0005}
            self.watch(call, pool.using(**limits).submit(self.run, call, kind))
        elif choice < 0.82:
            if pool.serve(self.run, call, kind):
                self.served.append(call)
        elif choice < 0.86:
            items = [Call() for _ in range(dice.randint(1, 5))]
            results = pool.map(lambda item: self.run(item, 3), items)
            self.map_items.extend(items)
            if dice.random() < 0.8:
                with suppress(CancelledError, PoolClosed):
                    assert list(results) == [3] * len(items)
        elif choice < 0.90:
            if mine:
                wait([dice.choice(mine)], timeout=dice.random() * 0.01)
        elif choice < 0.96:
            if mine:
                dice.choice(mine).cancel()
        elif choice < 0.98:
            pool.resize(dice.randint(1, 8))
        elif choice < 0.99:
            pool.pause()
            pool.resume()
        else:
            pool.stats()


def outcome(call: Call) -> RequestState:
    assert call.future is not None
    return call.future.state  # type: ignore[attr-defined, no-any-return]


def check_the_books(storm: Storm) -> None:
    assert not storm.unexpected, storm.unexpected[:3]
    futures = [call.future for call in storm.calls]
    assert all(future is not None and future.done() for future in futures)
    assert all(len(call.ends) == 1 for call in storm.calls), "every future ends exactly once"
    for call in (*storm.calls, *storm.served, *storm.map_items):
        assert len(call.runs) <= 1, "nothing runs twice"
    assert all(not call.runs for call in storm.calls if outcome(call) in NEVER_RAN)
    assert all(call.runs for call in storm.calls if outcome(call) in RAN)
    assert storm.most <= 8
    stats = storm.pool.stats()
    ends = Counter(map(outcome, storm.calls))
    assert (stats.queued, stats.running, stats.workers) == (0, 0, 0)
    assert stats.submitted == (
        stats.completed + stats.failed + stats.cancelled + stats.timed_out + stats.queue_timeouts + stats.lost
    ), stats
    served_done = sum(len(call.runs) for call in storm.served)
    items_done = sum(len(call.runs) for call in storm.map_items)
    assert (
        ends[RequestState.DONE] + ends[RequestState.FAILED] + served_done + items_done == stats.completed + stats.failed
    )
    gave_up = len(storm.gave_up)  # they waited too long for room; the pool counts them among the late
    without_maps = len(storm.calls) + len(storm.served) + gave_up
    assert without_maps + items_done <= stats.submitted <= without_maps + len(storm.map_items)
    if not storm.closed_early:  # a map that is being filled when the pool closes takes no more items
        assert stats.submitted == without_maps + len(storm.map_items)
    late = ends[RequestState.EXPIRED] + ends[RequestState.ABANDONED] + gave_up
    assert stats.timed_out + stats.queue_timeouts == late


NEVER_RAN = (RequestState.CANCELLED, RequestState.EXPIRED)
RAN = (RequestState.DONE, RequestState.FAILED)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("closing", [False, True], ids=["to the end", "closed in the midst"])
@pytest.mark.parametrize("options", POOLS.values(), ids=POOLS)
def test_a_storm(options: dict[str, Any], closing: bool, thorough: bool) -> None:
    seed = int(os.environ.get("BULLPEN_STORM_SEED", random.SystemRandom().randrange(10**6)))
    print(f"BULLPEN_STORM_SEED={seed} makes the same calls again")
    pool = Pool(4, recycling=RecyclePolicy(idle_timeout=0.05), calls=CallPolicy(log_errors=False), **options)
    storm = Storm(pool, 10_000 if thorough else 100, seed)
    rage(storm, closing)
    assert pool.stats().state is PoolState.CLOSED
    check_the_books(storm)


def rage(storm: Storm, closing: bool) -> None:
    """Let it run until every submitter has ended; if `closing`, close the pool when a fifth of the calls are made."""
    threads = [threading.Thread(target=storm.submitter, args=(number,), daemon=True) for number in range(SUBMITTERS)]
    for thread in threads:
        thread.start()
    if closing:
        enough = storm.calls_each * SUBMITTERS // 5
        while len(storm.calls) < enough and any(thread.is_alive() for thread in threads):
            time.sleep(0.001)
        storm.closed_early = True
        storm.pool.close(drain=storm.seed % 2 == 0)
    for thread in threads:
        thread.join()
    storm.pool.close()


def test_a_storm_of_waits_in_foreign_code() -> None:
    """Workers that wait in `concurrent.futures.wait` get helpers, or are told that there are too many of them."""
    told: list[str] = []
    with Pool(3) as pool:

        def outer(depth: int) -> None:
            futures = [pool.submit(outer, depth - 1) for _ in range(2)] if depth else []
            try:
                wait(futures, timeout=20)
            except NestedWait:
                told.append("rejected")
            else:
                told.append("waited")

        roots = [pool.submit(outer, 2) for _ in range(30)]
        for root in roots:
            root.result(PATIENCE)
        assert eventually(lambda: len(told) == 30 * 7)
    assert pool.stats().completed == len(told)
    assert "waited" in told
