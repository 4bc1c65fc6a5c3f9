"""Large arguments and results go through shared memory: they stay what they are as long as anybody uses them."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bullpen import Pool, ProcessRuntime, WorkerLost
from bullpen.pools.runtimes.process import arena, pickling, wire
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, START_METHODS
from tests.scenarios.support import eventually

MB = 1024 * 1024
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no such memory elsewhere")


def block(number: int, size: int = MB) -> work.Buffers:
    return work.Buffers([bytearray([number % 256]) * size])


def value(sent: work.Buffers) -> set[int]:
    """Which bytes are in it, here and there."""
    part = sent.parts[0]
    return {part[0], part[len(part) // 3], part[len(part) // 2], part[-1]}


def mapped() -> int:
    """How many pieces of shared memory this process has in use."""
    return Path("/proc/self/maps").read_text().count("memfd:bullpen")


@pytest.mark.parametrize("start", START_METHODS)
def test_large_values_go_there_and_back(start: Any) -> None:
    with Pool(2, runtime=ProcessRuntime(start=start)) as pool:
        for size in (arena.LEAST - 1, arena.LEAST, arena.LEAST + 1, 5 * MB + 3):
            assert pool.do(work.identity, b"x" * size) == b"x" * size
            back = pool.do(work.identity, block(7, size))
            assert (len(back.parts[0]), value(back)) == (size, {7})
        several = work.Buffers([bytearray(b"a" * MB), bytearray(b"b"), bytearray(b"c" * 2 * MB)])
        back = pool.do(work.identity, several)
        assert [bytes(part) for part in back.parts] == [bytes(part) for part in several.parts]


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_large_bytes_are_what_they_were_there_and_here(kind: type[bytes] | type[bytearray]) -> None:
    """Copied once into shared memory, and out of it, as an argument by place and by name, as a result and an item."""
    large = kind(b"x" * MB)
    with Pool(1, runtime="process") as pool:
        for sent in (large, [large, large], {"deep": [large]}):
            assert pool.do(work.identity, sent) == sent
            assert pool.do(work.identity, value=sent) == sent
        back = pool.do(work.identity, large)
        assert (type(back), pool.do(work.kind_of, large)) == (kind, kind.__name__)
        assert list(pool.stream(work.each_of, [large, large])) == [large, large]
        if isinstance(back, bytearray):
            back[0] = 0
            assert pool.do(work.identity, back)[:2] == b"\x00x"
            assert large[:2] == b"xx"
        gc.collect()
        assert eventually(lambda: mapped() == 0)


def test_the_pickle_of_large_bytes_is_small() -> None:
    for large in (b"x" * MB, bytearray(MB)):
        data, buffers = wire.dumps(large)
        assert len(data) < 1000
        assert [len(buffer) for buffer in buffers] == [MB]
        data, buffers, _ = pickling.encode_call(len, (large,), {"name": large})
        assert len(data) < 1000
        assert [len(buffer) for buffer in buffers] == [MB, MB]


def test_what_a_worker_begins_with_may_be_more_than_a_socket_holds() -> None:
    parts = [bytearray(100_000) for _ in range(20)]
    with Pool(1, runtime="process", initializer=work.keep_block, initargs=(work.Buffers(parts),)) as pool:
        assert pool.submit(pow, 2, 5).result(PATIENCE / 4) == 32


def test_where_nothing_more_can_be_mapped_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(*_: object, **__: object) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    there, back, log = arena.new_files()
    os.close(log)
    outbox, inbox = arena.Outbox(there), arena.Inbox(there)
    description, inline = outbox.place([b"x" * MB, b"y" * MB])
    monkeypatch.setattr(mmap, "mmap", too_many)
    assert inbox.collect(description, inline) == [b"x" * MB, b"y" * MB]
    assert inbox.take_freed() == struct.pack("<2q", 0, MB)  # their places can be used again
    os.close(there)
    os.close(back)


def test_they_really_go_through_shared_memory() -> None:
    with Pool(1, runtime="process") as pool:
        back = pool.do(work.identity, block(1))
        assert mapped() == 1
        del back
        gc.collect()
        assert mapped() == 0


def test_results_that_are_kept_stay_as_they_are_whatever_comes_after() -> None:
    """Also if there are more of them than may be lent."""
    with Pool(1, runtime="process") as pool:
        kept = [pool.do(work.identity, block(number)) for number in range(3 * arena.MOST_LENT)]
        for number in range(20):
            assert value(pool.do(work.identity, block(200 + number))) == {200 + number}
        assert [value(back) for back in kept] == [{number} for number in range(3 * arena.MOST_LENT)]
        assert mapped() == arena.MOST_LENT
    assert [value(back) for back in kept] == [{number} for number in range(3 * arena.MOST_LENT)], "its worker is gone"
    del kept
    gc.collect()
    assert mapped() == 0


def test_arguments_that_a_function_keeps_stay_as_they_are() -> None:
    with Pool(1, runtime="process") as pool:
        for number in range(3 * arena.MOST_LENT):
            pool.do(work.keep_block, block(number))
        assert value(pool.do(work.identity, block(250))) == {250}
        assert pool.do(work.kept_blocks) == list(range(3 * arena.MOST_LENT))


def test_the_same_memory_is_used_again() -> None:
    with Pool(1, runtime="process") as pool:
        for number in range(50):
            assert value(pool.do(work.identity, block(number, 4 * MB))) == {number}
        (worker,) = pool._engine.registry.snapshot()
        for box in (worker.handle._outbox, worker.handle._inbox):
            assert os.fstat(box._fd).st_size <= 3 * 4 * MB


def test_a_stream_uses_the_same_memory_again_and_leaves_it_to_what_follows() -> None:
    with Pool(1, runtime="process") as pool:
        for item in pool.stream(work.yield_blocks, 10 * arena.MOST_LENT, MB):
            value(item)
        del item
        gc.collect()
        pool.do(pow, 2, 2)  # with it goes what is not used any more
        assert value(pool.do(work.give_block, 1, MB)) == {1}
        (worker,) = pool._engine.registry.snapshot()
        assert os.fstat(worker.handle._inbox._fd).st_size <= arena.MOST_LENT * MB + arena.MARKS
        back = pool.do(work.give_block, 2, MB)
        assert mapped() == 1, "it came through the socket"
        assert value(back) == {2}


def test_unused_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "KEEP", MB)
    with Pool(1, runtime="process") as pool:
        pool.do(work.identity, block(1, 8 * MB))
        pool.do(work.identity, block(1, 8 * MB))
        (worker,) = pool._engine.registry.snapshot()
        pool.do(pow, 2, 2)  # with its result comes what is not used any more
        assert os.fstat(worker.handle._outbox._fd).st_size == 0


def test_a_result_outlives_a_worker_that_is_killed() -> None:
    with Pool(1, runtime="process") as pool:
        back = pool.do(work.identity, block(9, 3 * MB))
        assert isinstance(pool.submit(work.kill_self).exception(PATIENCE), WorkerLost)
        assert value(pool.do(work.identity, block(8, 3 * MB))) == {8}
        assert value(back) == {9}


def test_streams_and_many_at_once_keep_their_items_apart() -> None:
    with Pool(2, runtime="process") as pool:
        items = list(pool.stream(work.yield_blocks, 20, MB))
        assert [value(item) for item in items] == [{number} for number in range(20)]
        futures = [pool.submit(work.identity, block(number, MB)) for number in range(40)]
        assert [value(future.result(PATIENCE)) for future in futures] == [{number} for number in range(40)]


FORKS = """
import gc
from bullpen import Pool
from tests.scenarios import process_support as work

with Pool(1, runtime="process") as pool:
    print(work.write_in_fork(pool.do(work.give_block, 1, 1_000_000)))
    child = work.fork_with_block(pool.do(work.give_block, 2, 1_000_000), None)
    gc.collect()
    for number in range(10, 30):
        assert pool.do(work.give_block, number, 1_000_000).parts[0][::100_000] == bytes([number]) * 10
    print(work.ask_forked(child))
"""


def test_a_forked_child_has_results_of_its_own() -> None:
    """What it writes into them is not seen in the app; and what comes there later, in their place, not in the child."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["{1}", "{2}"], done.stderr


def test_a_forked_child_of_a_worker_has_arguments_of_its_own() -> None:
    with Pool(1, runtime="process") as pool:
        assert pool.do(work.write_in_fork, block(1)) == {1}
        child = pool.do(work.fork_with_block, block(2), None)
        for number in range(10, 30):
            assert value(pool.do(work.identity, block(number))) == {number}
        assert pool.do(work.ask_forked, child) == {2}
