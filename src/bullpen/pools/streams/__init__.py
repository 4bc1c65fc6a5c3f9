"""`stream`: the items of a generator that runs on a worker, as they are produced.

`stream.py` is `Pool.stream`: a buffer between two threads, and the calls that fill it. `async_stream.py` is
`AsyncPool.stream`: its reader is on the loop. One class of buffer each serves generators on the loop, on a thread, and
in another process.
"""
