"""Small classics of concurrency, each broken and corrected, for an exploration to find or to pass."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen import primitives
from tests.tools.explore import Run, Scenario


def taking_the_last(atomic: bool) -> Scenario:
    """Two actors take from a deque of one: check-then-act, or one operation."""

    def scenario(run: Run) -> None:
        free = primitives.new_deque(["slot"])
        taken: list[str] = []

        def take() -> None:
            if atomic:
                try:
                    taken.append(free.popleft())
                except IndexError:
                    pass
            elif free:
                taken.append(free.popleft())

        run.actor(take, name="first")
        run.actor(take, name="second")
        run.check(lambda: taken == ["slot"] or pytest.fail(f"taken: {taken}"))

    return scenario


def parking(recheck: bool) -> Scenario:
    """A worker parks while a request is queued: the wake-up is lost unless it looks again after saying so."""

    def scenario(run: Run) -> None:
        backlog = primitives.new_deque()
        parked = primitives.new_deque()
        done: list[str] = []

        def work() -> None:
            gate = primitives.gate()
            gate.acquire()
            while len(done) < 2:
                if backlog:
                    done.append(backlog.popleft())
                    continue
                parked.append(gate)
                if recheck and backlog:
                    try:
                        parked.remove(gate)
                    except ValueError:
                        gate.acquire()
                    continue
                gate.acquire()

        def submit(request: str) -> None:
            backlog.append(request)
            try:
                parked.popleft().release()
            except IndexError:
                pass

        worker = primitives.start_thread(work, "worker")
        run.actor(submit, "a")
        run.actor(submit, "b")
        run.actor(lambda: worker.join(), name="joiner")
        run.check(lambda: sorted(done) == ["a", "b"] or pytest.fail(str(done)))

    return scenario


def parking_with_a_plain_flag(run: Run) -> None:
    """The same with an attribute instead of a deque: the write next to an operation is a moment of its own."""
    backlog = primitives.new_deque()
    gate = primitives.gate()
    gate.acquire()
    state = {"parked": False}

    def work() -> None:
        if not backlog:
            state["parked"] = True
            gate.acquire()

    def submit() -> None:
        backlog.append("a")
        if state["parked"]:
            gate.release()

    run.actor(work)
    run.actor(submit)


def two_locks(ordered: bool) -> Scenario:
    def scenario(run: Run) -> None:
        registry, worker = primitives.registry_lock(), primitives.worker_lock()

        def both(first: primitives.Lock, second: primitives.Lock) -> None:
            with first, second:
                pass

        run.actor(both, registry, worker, name="alice")
        run.actor(both, *((registry, worker) if ordered else (worker, registry)), name="bob")

    return scenario


def starting(locked: bool) -> Scenario:
    """Lazy start: without one section around check and start, two callers start it twice."""

    def scenario(run: Run) -> None:
        lock = primitives.pool_lock()
        started: list[Any] = []

        def start() -> None:
            started.append(primitives.start_thread(lambda: None, "worker"))

        def ensure_started() -> None:
            with lock:
                missing = not started
                if missing and locked:
                    start()
            if missing and not locked:
                start()

        run.actor(ensure_started, name="first")
        run.actor(ensure_started, name="second")
        run.check(lambda: len(started) == 1 or pytest.fail(f"started {len(started)} times"))

    return scenario


def waiting_with_a_timeout(trusts_the_timeout: bool) -> Scenario:
    """Opened just after the wait timed out: one who then trusts the timeout alone loses the result."""

    def scenario(run: Run) -> None:
        lock, gate = primitives.worker_lock(), primitives.gate()
        gate.acquire()
        state = {"result": False, "given up": False}

        def wait() -> None:
            opened = primitives.system_clock.wait(gate, 1.0)
            with lock:
                if not opened and (trusts_the_timeout or not state["result"]):
                    state["given up"] = True

        def finish() -> None:
            run.clock.sleep(1.0)
            with lock:
                if not state["given up"]:
                    state["result"] = True
                    gate.release()

        run.actor(wait)
        run.actor(finish)
        run.check(lambda: state["result"] != state["given up"] or pytest.fail(str(state)))

    return scenario


def shared_counter(run: Run) -> None:
    """Three actors of twenty locked steps each, for determinism and coverage."""
    lock, line = primitives.worker_lock(), primitives.new_deque()

    def work() -> None:
        for _ in range(5):
            with lock:
                line.append(1)

    for name in "abc":
        run.actor(work, name=name)
    run.check(lambda: len(line) == 15 or pytest.fail(str(len(line))))


BROKEN = {
    "check then act": taking_the_last(atomic=False),
    "queued while parking": parking(recheck=False),
    "parked behind a plain flag": parking_with_a_plain_flag,
    "ab-ba deadlock": two_locks(ordered=False),
    "double start": starting(locked=False),
    "lost timeout": waiting_with_a_timeout(trusts_the_timeout=True),
}
FIXED = {
    "check then act": taking_the_last(atomic=True),
    "queued while parking": parking(recheck=True),
    "ab-ba deadlock": two_locks(ordered=True),
    "double start": starting(locked=True),
    "lost timeout": waiting_with_a_timeout(trusts_the_timeout=False),
}
