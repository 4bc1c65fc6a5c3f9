"""Add up a tree of folders, where every folder submits its children to the pool that it runs on, and waits for them.

There are three workers and many more folders that wait. A worker that waits for a folder which has not started runs
that folder itself, so the pool never stands still. `ThreadPoolExecutor(3)` would.
"""

import tempfile
from pathlib import Path

from bullpen import Pool


def plant(folder: Path, depth: int, width: int) -> None:
    """Files of ten bytes in folders in folders."""
    (folder / "file").write_bytes(b"0123456789")
    if depth:
        for number in range(width):
            child = folder / str(number)
            child.mkdir()
            plant(child, depth - 1, width)


def size(pool: Pool, folder: Path) -> tuple[int, int]:
    """How many folders there are, and how many bytes in them."""
    entries = list(folder.iterdir())
    children = [pool.submit(size, pool, entry) for entry in entries if entry.is_dir()]
    folders, total = 1, sum(entry.stat().st_size for entry in entries if entry.is_file())
    for child in children:
        inner_folders, inner_total = child.result()
        folders += inner_folders
        total += inner_total
    return folders, total


def main() -> None:
    with tempfile.TemporaryDirectory() as root, Pool(3, name="crawl") as pool:
        plant(Path(root), depth=4, width=3)
        folders, total = pool.do(size, pool, Path(root))
    print(f"{folders} folders, {total} bytes")
    print(f"{pool.stats().completed} calls on {pool.stats().spawned} workers")


if __name__ == "__main__":
    main()

# prints:
# 121 folders, 1210 bytes
# 121 calls on ... workers
