"""The task queue beside other queues on the same server, Redis or PostgreSQL, and beside the raw statements.

Reading order: `works` (what is measured, by whom, and the bars), `settings` (sizes and places), `library` (what a
measurement asks of each), `ours`, `redis_peers` and `postgres_peers` (each in its own idiom), `raw` (what the server
itself can do over the same driver), `trace` (what has run, and when), `worker` (a process that works), `measures`,
`claiming` and `killing` (one measurement each).
"""
