"""A reader that is faster than the store it writes to, in two ways.

A file can wait: with `when_full="block"` the reader is slowed down, and memory holds a few records instead of all. A
live feed cannot: `serve` says False at once, and what does not fit is counted and dropped.
"""

import threading
import time
from collections.abc import Iterator

from bullpen import Pool


class Store:
    """Keeps records, slowly, and notes how many were read but not yet kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.kept = 0
        self.pending = 0
        self.most_pending = 0

    def read(self, count: int) -> Iterator[str]:
        for number in range(count):
            with self._lock:
                self.pending += 1
                self.most_pending = max(self.most_pending, self.pending)
            yield f"record {number}"

    def keep(self, record: str) -> None:
        time.sleep(0.001)
        with self._lock:
            self.kept += bool(record)
            self.pending -= 1


def main() -> None:
    file = Store()
    with Pool(4, max_queue=16, when_full="block") as pool:
        for record in file.read(400):
            pool.submit(file.keep, record)  # waits while 16 wait already
    print(f"file: kept {file.kept} of 400, at most {file.most_pending} in memory")
    assert file.most_pending <= 4 + 16 + 1

    feed, dropped = Store(), 0
    with Pool(4, max_queue=16) as pool:
        for record in feed.read(400):
            dropped += not pool.serve(feed.keep, record)
    print(f"feed: kept {feed.kept}, dropped {dropped}")
    assert feed.kept + dropped == 400


if __name__ == "__main__":
    main()

# prints:
# file: kept 400 of 400, at most ... in memory
# feed: kept ..., dropped ...
