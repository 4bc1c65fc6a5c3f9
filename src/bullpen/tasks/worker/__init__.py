"""The durable worker. To read it, follow one task from its claim to its settlement:

worker_pool.py   AsyncWorkerPool: start, stop, run     sync.py              WorkerPool, for sync programs
lane.py          permits, attempts, threads            options.py           lanes and all other options
exchange.py      claims and settlements                declarations.py      schedules and limits of the code
attempt.py       one attempt at one task               scope.py             lifespans, middleware, injection
in_process.py    … in a process of the lane            own_transaction.py   `complete()` of a task
heartbeat.py     leases and requests to cancel         poison_isolation.py  tasks that kill their worker
upkeep.py        tasks of dead workers, pruning        identity.py          which workers on this host are alive
reports.py       log lines, events, outages            signals.py           SIGTERM and SIGINT
                                                       loops.py             asyncio's event loop, or uvloop
"""
