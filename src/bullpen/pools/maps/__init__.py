"""`map`: results in order or as they come, and never more than a window of items under way or unread.

`Pool.map` fills the window when it is called and refills it as results are read, so an iterable may be endless. An
iterator that is dropped before its first result is read runs to its end: `pool.map(f, items)` as a statement does all
of its work, as it does with the standard executors. `supervision/feeding.py` takes the items then, and ends maps when
the pool closes.

Read in this order:

1. `iterator.py`: `MapIterator`, which the caller holds. `outcome.py`: `Outcome`, if the caller asks for it.
2. `map_work.py`: `MapWork`, the base of the strategies: it takes items, keeps the unread bundles, and ends.
3. `request_map.py`: one request per item, for calls with time limits or traits, observed pools and tiny windows.
4. `runner_map.py`: a few requests that take bundles of items. Thread pools use it for all other calls.
5. `chunk_map.py`: several items in one request, for workers in other processes.
6. `async_map.py`: `AsyncPool.map`, one request per item. `fed_map.py`: over async iterables.
7. `async_runner_map.py`: a few requests that take the items. Coroutine functions without limits or traits use it.

`PoolView.start_map` chooses among 3, 4 and 5; `AsyncPoolView.map` among those of 6 and 7.
"""
