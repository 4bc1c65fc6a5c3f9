"""Wing 1: pools, which run calls now.

Read in this order:

1. `pool.py`: `Pool`, and `view.py`: a pool with options for single calls. `options.py` and `policies.py` check options.
2. `dispatch/`: requests, their futures, the backlog, and the dispatcher, which pairs waiting requests with workers.
3. `supervision/`: `engine.py` wires a pool together; the other files start, replace, recycle and end its workers.
4. `runtimes/`: where calls run: on threads, on an event loop, in processes, in programs.
5. `maps/` and `streams/`: many results from one call of the user.
6. `async_pool.py`: `AsyncPool`, a pool on an event loop. `async_sides.py` has its two engines, `async_calls.py` their
   requests and futures, `loop_bridge.py` the way from other threads to the loop.
7. `pools.py`: several pools by name. `configuration.py` reads them from a file.
8. `stats.py` and `explain.py`: what a pool does now, as numbers and in words.
"""
