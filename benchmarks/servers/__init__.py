"""The task queue beside other queues on the same server, Redis or PostgreSQL, and beside the raw statements.

Reading order: `works` (measurements, contestants and bars), `settings` (sizes and places), `library` (the interface of
a contestant), `ours`, `redis_peers` and `postgres_peers` (each in its own idiom), `raw` (the speed of the server itself
over the same driver), `trace` (which task ran when), `worker` (a worker process), `measures`, `claiming` and `killing`
(one measurement each).
"""
