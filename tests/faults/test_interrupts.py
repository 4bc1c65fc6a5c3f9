"""An interrupt, at whatever line of a submission it comes, leaves every worker usable and no pool that cannot close."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bullpen import Pool, PoolFuture
from bullpen.core import dispatcher
from bullpen.runtimes import thread
from bullpen.testing import lock_order
from tests.faults.interrupts import Interrupt
from tests.scenarios.support import PATIENCE, Background, eventually

HOT = (dispatcher.__file__, thread.__file__)


@pytest.fixture(autouse=True)
def locks_of_the_interpreter() -> Iterator[None]:
    """What checks their order is written in Python, where signals come in that would not come otherwise."""
    lock_order.uninstall()
    yield
    lock_order.install()


CASES: dict[str, dict[str, Any]] = {"unbounded": {}, "bounded": {"max_queue": 5}}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("call", ["submit", "serve", "session"])
def test_an_interrupt_costs_no_worker(call: str, options: dict[str, Any]) -> None:
    where = list[str]()
    while (last := interrupted_at(len(where) + 1, call, options)) is not None:
        where.append(last)
    assert {point.split(":")[0] for point in where} >= {"Dispatcher._take", "Dispatcher._pop_ready", "_Thread.hand"}


def interrupted_at(count: int, call: str, options: dict[str, Any]) -> str | None:
    """Interrupt the submission at its `count`-th line and look what is left; where that was, None if nowhere."""
    workers = 2
    with Pool(workers, min_workers=workers, idle_timeout=None, **options) as pool:
        assert pool.wait_ready(PATIENCE)
        assert eventually(lambda: pool.stats().idle == workers)
        view = pool.using(session="s", affinity="strict_queue") if call == "session" else pool.using()
        submit = view.serve if call == "serve" else view.submit
        interrupt = Interrupt(count, HOT)
        with contextlib.suppress(KeyboardInterrupt):
            with interrupt:
                submit(int)
            if interrupt.where:  # it was put off, and comes as a signal
                assert eventually(lambda: False), "the interrupt was lost"
        places = workers * int(options.get("capacity", 1))
        barrier = threading.Barrier(places)
        futures: list[PoolFuture[Any]] = [pool.submit(barrier.wait, PATIENCE / 4) for _ in range(places)]
        errors = [future.exception(PATIENCE) for future in futures]
        assert errors == [None] * places, interrupt.where
        closing = Background(pool.close)
        closing.join()
    return interrupt.where or None
