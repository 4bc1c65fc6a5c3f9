"""Workers that are processes.

To read it, follow one call: `runtime.py` (what the pool asks for), `process.py` (one worker, from the app's side),
`supervised.py` (what it has in common with a program: requests, cancelling, the end), `pickling.py` (a call as bytes),
`wire.py` (frames between processes), `arena.py` (shared memory for what is large), `child.py` (what a worker does),
`calls.py` (how it runs requests), `failures.py` (exceptions as data), `refusals.py` (what cannot be pickled),
`items.py` (streams), `switchboard.py` (the one thread that waits for all of them), `output.py` (what workers print).
Workers are started and buried by a keeper process: `nursery.py` is the app's side of it, `zygote.py` the keeper itself,
`birth.py` how a process that it has forked becomes a worker, `orphans.py` what others have left.

`arena`, `birth`, `wire`, `child`, `calls`, `failures`, `orphans` and `zygote` are imported by every worker, so they use
the standard library only.
"""
