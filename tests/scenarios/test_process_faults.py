"""Worker processes that fork, are stopped, are dead already, or send garbage: no call is answered by another process,
nothing hangs, and no process is left.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bullpen import Pool, ProcessRuntime
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, START_METHODS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


# Forked children that leave the user's function.


@pytest.mark.parametrize("start", START_METHODS)
@pytest.mark.parametrize("capacity", [1, 2])
def test_a_forked_child_that_leaves_the_function_ends_without_a_word(start: Any, capacity: int) -> None:
    with Pool(1, runtime=ProcessRuntime(start=start), capacity=capacity) as pool:
        first = pool.do(work.pid)
        for how, code in (("returns", 0), ("raises", 1), ("exits", 3)):
            assert pool.submit(work.fork_and_leave, how).result(PATIENCE) == code, how
        assert list(pool.stream(work.fork_and_yield)) == [0]
        assert pool.do(work.pid) == first
    assert pool.stats().spawned == 1


def test_a_forked_child_of_an_initializer_is_no_second_worker() -> None:
    with Pool(1, runtime="process", initializer=work.fork_at_start) as pool:
        assert [pool.do(work.identity, number) for number in range(10)] == list(range(10))


@pytest.mark.parametrize("how", ["goes on", "raises"])
def test_a_forked_child_of_a_preloaded_module_is_no_second_forkserver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"forks_and_{how.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(f"import os\nif not os.fork() and {how == 'raises'}:\n    raise ValueError\n")
    with Pool(8, runtime=ProcessRuntime(preload=[name]), min_workers=8) as pool:
        assert pool.wait_ready(PATIENCE)
        parents = {work.parent_of(pool.do(work.pid)) for _ in range(8)}
    assert len(parents) == 1
