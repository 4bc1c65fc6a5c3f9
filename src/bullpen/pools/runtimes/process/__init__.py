"""Workers that are processes.

To follow one call, read in this order:

1. `runtime.py`: the runtime that the pool uses.
2. `process.py`: one worker process, as the app sees it. Its base class is in `supervised.py`, and programs share it:
   requests, cancelling, killing, the end.
3. `pickling.py`: a call becomes a pickle. `pickle_errors.py` explains what cannot be pickled.
4. `wire.py`: frames between two processes. `arena.py`: shared memory for large pieces of a frame.
5. `child.py`: the worker's side. `calls.py`: how it runs requests. `failures.py`: how exceptions travel back.
6. `io_thread.py`: the one thread of the app that reads what all processes send. `items.py` takes the items of streams,
   `output.py` what workers print.

A forkserver process starts the workers and reports how they ended: `forkserver_client.py` is the app's side of it,
`forkserver.py` the process itself, `bootstrap.py` turns a forked process into a worker, and `orphans.py` kills what an
earlier app has left behind.

Every worker imports `arena`, `bootstrap`, `wire`, `child`, `calls`, `failures`, `orphans` and `forkserver`, so these
modules use the standard library only.
"""
