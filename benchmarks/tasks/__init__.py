"""The task queue beside other queues on SQLite, and beside plain SQL.

Reading order: `works` (measurements, contestants and bars), `settings` (sizes), `plain` (the speed of SQLite
itself), `ours` and `peers` (each library in its own idiom), `enqueueing`, `draining`, `waiting`, `idling`, `claiming`
(one measurement each), `remote` (a worker in another process), `soak` (another command: memory over a million tasks).
"""
