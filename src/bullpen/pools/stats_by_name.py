"""The statistics of several pools of any kind, for views that show them side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bullpen.pools.async_pool import AsyncPool
from bullpen.pools.pool import Pool
from bullpen.pools.pools import Pools
from bullpen.pools.stats import PoolStats


def stats_by_name(pools: Iterable[Pool | AsyncPool | Pools]) -> Iterator[tuple[str, str, PoolStats]]:
    """The name and side of each pool. Of two pools with one name, the first."""
    seen: set[tuple[str, str]] = set()
    for name, side, stats in _all_stats(pools):
        if (name, side) not in seen:
            seen.add((name, side))
            yield name, side, stats


def _all_stats(pools: Iterable[Pool | AsyncPool | Pools]) -> Iterator[tuple[str, str, PoolStats]]:
    for pool in pools:
        if isinstance(pool, Pools):
            yield from ((name, "", stats) for name, stats in pool.stats().items())
        elif isinstance(pool, AsyncPool):
            both = pool.stats()
            yield both.name, "coroutines", both.coroutines
            yield both.name, "threads", both.threads
        else:
            stats = pool.stats()
            yield stats.name, "", stats
