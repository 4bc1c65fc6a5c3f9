"""Durable steps, sleep and events beside other libraries for durable functions, on SQLite, PostgreSQL and Redis.

Reading order: `works` (measurements, contestants and bars), `settings` (sizes and places), `ours` and `peers` (each in
its own idiom), `running` (tasks of ten steps), `saving` (one step beside one `aenqueue`), `parked` (many tasks that
sleep or wait). The workers of `running` and `parked` are those of `benchmarks.servers`.
"""
