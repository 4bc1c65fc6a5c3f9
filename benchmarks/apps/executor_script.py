"""The same with ProcessPoolExecutor; its argument is the start method."""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def double(x: int) -> int:
    return 2 * x


if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=get_context(sys.argv[1])) as pool:
        assert pool.submit(double, 1).result() == 2
        from benchmarks.apps.clock import note_time

        note_time()
