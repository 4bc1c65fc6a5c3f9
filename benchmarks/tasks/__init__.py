"""The task queue beside other queues on SQLite, and beside plain SQL.

Reading order: `works` (what is measured, by whom, and the bars), `settings` (sizes), `plain` (what SQLite itself can
do), `ours` and `peers` (each library in its own idiom), `enqueueing`, `draining`, `waiting`, `idling`, `claiming` (one
measurement each), `remote` (a worker in another process), `soak` (a longer command of its own: memory over a million
tasks).
"""
