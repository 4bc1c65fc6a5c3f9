"""The durable worker. To read it, follow one task from its claim to its settlement:

worker_pool.py   AsyncWorkerPool: start, stop, run     sync.py      WorkerPool, the same from sync code
lane.py          permits, claims, settlements          options.py   lanes, and all other options
attempt.py       one attempt at one task               reports.py   log lines and events
keeper.py        leases and requests to cancel         upkeep.py    tasks of the dead, the expired, the old
signals.py       what SIGTERM and SIGINT do            identity.py  who is alive on this host
loops.py         asyncio's event loop, or uvloop
"""
