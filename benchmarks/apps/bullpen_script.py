"""A script with a process pool of Bullpen."""

from bullpen import Pool


def double(x: int) -> int:
    return 2 * x


if __name__ == "__main__":
    with Pool(2, runtime="process") as pool:
        assert pool.submit(double, 1).result() == 2
        from benchmarks.apps.clock import note_time

        note_time()
